"""Commands on a dataset: its settings are kept, and failures leave nothing half done."""

import json
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from helpers import number_pairs, python, write_pairs

from tfm.dataset.manifest import Manifest

TFM = [sys.executable, "-m", "tfm"]

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def dataset(elsewhere, run):
    """The text of a dataset, and its subword model."""
    write_pairs(elsewhere, "my", list(number_pairs("train", num_pairs=60, seed=1)))
    options = ("--out", "data/mine", "--vocab-size", 330, "--text-only")
    run.ok("prepare", "--train", "my.en", "my.de", *options)
    run.ok("learn-bpe", "data/mine")
    return elsewhere / "data" / "mine"


def test_the_working_directory_may_become_a_dataset(dataset, run, elsewhere, monkeypatch):
    monkeypatch.chdir(dataset)
    text = (elsewhere / "my.en", elsewhere / "my.de")
    run.ok("prepare", "--train", *text, "--out", ".", "--vocab-size", 330)


def test_training_text_may_be_several_texts(dataset, elsewhere, run):
    lines = {name: (elsewhere / name).read_text() for name in ("my.en", "my.de")}
    rows = zip(*(text.splitlines() for text in lines.values()), strict=True)
    (elsewhere / "my.tsv").write_text("".join(f"{s} again\t{t} wieder\n" for s, t in rows))
    rest = ("--languages", "en", "de", "--out", "data/two", "--text-only", "--force")
    for texts in (
        ("--train=my.en", "my.de", "--train", "my.tsv", *rest),
        ("--train", "my.en", "my.de", *rest, "--train", "my.tsv"),
    ):
        run.ok("prepare", *texts)
        train = (elsewhere / "data" / "two" / "train.de").read_text()
        assert train == lines["my.de"] + lines["my.de"].replace("\n", " wieder\n")


def test_settings_of_a_recipe_apply_to_later_commands_unless_flags_change_them(dataset, run):
    assert json.loads((dataset / "manifest.json").read_text())["settings"]["subword"] == {
        "vocab_size": 330
    }
    assert len((dataset / "bpe.vocab").read_text().splitlines()) == 330
    assert run("learn-bpe", "data/mine", "--vocab-size", 335)[0] == 0
    for _ in range(2):  # they are kept
        assert len((dataset / "bpe.vocab").read_text().splitlines()) == 335
        assert run("learn-bpe", "data/mine")[0] == 0


def test_a_setting_that_loses_its_effect_is_no_longer_kept(dataset, run):
    given = ["--max-length", 90]
    assert run("binarize", "data/mine", *given, "--threads", 1)[0] == 0
    kept = {"max_length": 90}
    assert Manifest.load(dataset).settings("binarize") == kept
    _, err = run.ok("binarize", "data/mine", "--max-length", 250)
    assert "max_length was 90, not 250" in err
    assert Manifest.load(dataset).settings("binarize") == {}


def test_ctrl_c_stops_learning_at_once_and_leaves_nothing_half_done(dataset):
    text = (dataset / "train.en").read_text() * 10_000  # takes seconds
    (dataset / "train.en").write_text(text)
    before = (dataset / "bpe.model").read_bytes()
    with subprocess.Popen(
        [*TFM, "learn-bpe", "data/mine", "--model-type", "unigram"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "model_type was bpe, not unigram" in process.stderr.readline()
        assert process.stderr.readline().startswith("learn-bpe: learning from")
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=5)
    assert (process.returncode, out, err) == (130, "", "tfm: stopped\n")
    assert (dataset / "bpe.model").read_bytes() == before
    assert [path.name for path in dataset.glob(".*")] == [".lock"]


def _allow_small_files_only():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))


@pytest.mark.parametrize("command", ["learn-bpe", "binarize"])
def test_a_full_disk_is_one_line_and_leaves_the_old_output(dataset, command, run):
    assert run("binarize", "data/mine")[0] == 0
    before = {path: path.read_bytes() for path in dataset.iterdir() if path.is_file()}
    words = ("-m", "tfm", command, "data/mine", "--force")
    done = python(*words, preexec_fn=_allow_small_files_only)
    last_line = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"tfm: data/mine/\S+: File too large", last_line), last_line
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in dataset.iterdir() if path.is_file()} == before
    assert not list(dataset.rglob("*.partial"))
