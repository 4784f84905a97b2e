"""tfm generate: one line out for each line in."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tfm.config import SearchConfig
from tfm.errors import CheckpointError, DataError, UsageError
from tfm.runtime.checkpoint import checkpoints
from tfm.stages import generate as stage
from tfm.stages.generate import generate, plan_generation
from tfm.translator import Translator

CONFIG = SearchConfig(max_extra_length=3)


@pytest.fixture
def run(trained_run, tmp_path):
    """Translate a file with the trained run; also where notes go."""

    def translate(path, config=CONFIG):
        plan = plan_generation([trained_run], input_path=path, split=None, runs_dir=tmp_path)
        return list(generate(plan, config, device="cpu", precision="fp32", runs_dir=tmp_path))

    return translate


def write(path, content):
    path.write_bytes(content)
    return path


def test_each_line_is_translated_in_order_and_empty_ones_are_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "_BUFFER_LINES", 3)
    lines = [
        "seven",
        "",
        "on Monday",
        "today is the third of May",
        "",
        "",
        "8",
        "I am buying a car",
    ]
    found = run(write(tmp_path / "in", "".join(f"{line}\n" for line in lines).encode()))
    assert [line for line, _ in found] == lines
    assert [not best[0].text for _, best in found] == [not line for line in lines]


def test_translations_are_those_of_the_library(run, trained_run, tmp_path):
    lines = ["seven", "on Monday"]
    found = run(write(tmp_path / "in", "\n".join(lines).encode()))
    expected = Translator.load(trained_run, device="cpu").translate(lines, CONFIG)
    assert [best[0].text for _, best in found] == expected


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
    ],
    ids=repr,
)
def test_only_line_feeds_end_lines(run, tmp_path, content, lines):
    assert [line for line, _ in run(write(tmp_path / "in", content))] == lines


def test_a_line_that_is_not_utf_8_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "_BUFFER_LINES", 2)
    path = write(tmp_path / "in", b"a\nb\nc\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"in, line 4: not UTF-8"):
        run(path)


def test_standard_input_is_read_when_it_has_text(trained_run, tmp_path, monkeypatch):
    with write(tmp_path / "in", b"seven\n\n8\n").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        plan = plan_generation([trained_run], input_path=None, split=None, runs_dir=tmp_path)
        assert (plan.source.path, str(plan.source)) == (None, "standard input")
        found = generate(plan, CONFIG, device="cpu", precision="fp32", runs_dir=tmp_path)
        assert [line for line, _ in found] == ["seven", "", "8"]


@pytest.fixture
def terminal(monkeypatch):
    """A standard input from which nothing comes."""
    with Path(os.devnull).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        yield


@pytest.mark.usefixtures("terminal")
def test_without_text_the_test_set_of_the_newest_run_is_translated(trained_run, data_dir, tmp_path):
    plan = plan_generation([], input_path=None, split=None, runs_dir=trained_run.parent)
    assert plan.models == [checkpoints(trained_run)[-1]]
    assert (plan.source.path, plan.source.split) == (data_dir / "test.en", "test")
    assert plan.source.reference == data_dir / "test.de"
    found = list(generate(plan, CONFIG, device="cpu", precision="fp32", runs_dir=tmp_path))
    assert len(found) == 12
    note = json.loads((tmp_path / "last-generation.json").read_text())
    assert (note["split"], note["reference"]) == ("test", str(data_dir / "test.de"))


def test_a_split_can_be_chosen(trained_run, data_dir, tmp_path):
    plan = plan_generation([trained_run], input_path=None, split="valid", runs_dir=tmp_path)
    assert plan.source.path == data_dir / "valid.en"


def test_a_file_has_no_known_reference(run, tmp_path):
    run(write(tmp_path / "in", b"a\n"))
    note = json.loads((tmp_path / "last-generation.json").read_text())
    assert (note["split"], note["reference"]) == (None, None)
    assert note["source"] == str(tmp_path / "in")


def test_text_and_split_exclude_each_other(trained_run, tmp_path):
    with pytest.raises(UsageError, match="--input and --split exclude each other"):
        plan_generation([trained_run], input_path=tmp_path, split="test", runs_dir=tmp_path)


def test_text_that_is_not_there_is_named(run, tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        run(tmp_path / "nowhere")


def test_a_dataset_that_is_gone_is_named(trained_run, tmp_path):
    model = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "model")
    record = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**record, "data_dir": "data/gone"}))
    with pytest.raises(DataError, match=r"data/gone, the dataset of .*model, is not here"):
        plan_generation([model], input_path=None, split="test", runs_dir=tmp_path)


def test_without_any_run_the_user_is_told_to_train(tmp_path):
    with pytest.raises(CheckpointError, match='start with "tfm train"'):
        plan_generation([], input_path=None, split="test", runs_dir=tmp_path)
