"""The quickstart, with a stub in place of tfm."""

import os
import re
import shlex
import signal
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from helpers import parsed_command

from tfm.commands.quickstart import quickstart
from tfm.config import run_config
from tfm.errors import InterruptedRunError, TfmError, UsageError

# Replaces tfm: records its arguments and writes the files that other stages need.
STUB = """
    import json, os, pathlib, sys

    stage = sys.argv[1]
    with open("calls.txt", "a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
    if stage == os.environ.get("FAILS"):
        sys.exit(f"{stage} cannot continue")
    if stage == os.environ.get("DIES"):
        os.kill(os.getpid(), 9)
    if stage == os.environ.get("INTERRUPTS"):
        os.kill(os.getppid(), 2)
    if stage == "train":
        run = pathlib.Path("runs/numbers")
        run.mkdir(parents=True, exist_ok=True)
        (run / "report.html").touch()
    if stage == "generate":
        assert not sys.stdin.read()
        pathlib.Path("test.en").write_text("one\\ntwo\\nthree\\nfour\\nfive\\n")
        pathlib.Path("test.de").write_text("eins\\nzwei\\ndrei\\nvier\\nfünf\\n")
        record = {"format": 1, "source": "test.en", "references": ["test.de"]}
        pathlib.Path("runs/last-generation.json").write_text(json.dumps(record))
        print("eins\\nzwei\\n[bold]drei\\nvier\\nsechs")
    if stage == "score":
        lines = sys.stdin.read().split("\\n")
        value = 100.0 * len(lines)
        entry = {"name": "bleu", "label": "BLEU", "value": value, "signature": "nrefs:1"}
        print(json.dumps({"scores": [entry]}))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "stub.py"
    path.write_text(textwrap.dedent(STUB), encoding="utf-8")
    command = (sys.executable, "-X", "utf8", str(path))
    monkeypatch.setattr("tfm.commands.quickstart._THIS_PROGRAM", command)


def calls(out_dir):
    return (out_dir / "calls.txt").read_text().splitlines()


def test_the_seven_stages_run_in_order_and_are_shown_with_samples(tmp_path, program, capfd):
    quickstart(out=tmp_path / "quickstart")
    stages = [call.split()[0] for call in calls(tmp_path / "quickstart")]
    assert stages == ["prepare", "learn-bpe", "binarize", "train", "average", "generate", "score"]
    out, shown = capfd.readouterr()
    assert out == ""
    lines = ["prepare numbers-en-de --text-only", "learn-bpe", "binarize", "average"]
    for line in [*lines, "train --arch quickstart", "generate --beam 4 | tfm score --metric bleu"]:
        assert f"$ tfm {line}" in shown
    assert str(tmp_path / "quickstart" / "runs" / "numbers" / "report.html") in shown
    assert re.search(r"BLEU +600\.0 +nrefs:1", shown)  # translations went through the pipe
    rows = [line.split() for line in shown.splitlines()]
    assert [row for row in rows if row and row[0] in ("source", "translation", "reference")] == [
        ["source", "one"], ["translation", "eins"], ["reference", "eins"],
        ["source", "three"], ["translation", "[bold]drei"], ["reference", "drei"],
        ["source", "five"], ["translation", "sechs"], ["reference", "fünf"],
    ]  # fmt: skip


def test_the_commands_to_try_next_work_in_a_shell(tmp_path, program, capfd):
    folder = tmp_path / "my user's quickstart"
    quickstart(out=folder)
    commands = capfd.readouterr().err.partition("What to try next:")[2].splitlines()[1::2]
    assert shlex.split(next(line for line in commands if line.startswith("  cd "))) == [
        "cd",
        str(folder),
    ]
    for line in commands:
        words = shlex.split(line.rpartition("tfm ")[2]) if "tfm " in line else ["--help"]
        if not any(flag.startswith("--help") for flag in words):
            parsed_command(words)
            assert "--train" not in words or "--out" in words


def test_a_failed_stage_ends_the_quickstart_with_its_exit_code(
    tmp_path, program, monkeypatch, capfd
):
    monkeypatch.setenv("FAILS", "binarize")
    with pytest.raises(TfmError, match=r'"tfm binarize" in .*quickstart failed with') as error:
        quickstart(out=tmp_path / "quickstart")
    assert error.value.exit_code == 1
    assert "\n" not in str(error.value)
    assert "binarize cannot continue" in capfd.readouterr().err
    assert calls(tmp_path / "quickstart")[-1] == "binarize"


@pytest.mark.parametrize("stage", ["generate", "score"])
def test_a_failure_in_the_pipe_names_the_first_failed_stage(tmp_path, program, monkeypatch, stage):
    monkeypatch.setenv("FAILS", stage)
    with pytest.raises(TfmError, match=f'"tfm {stage} '):
        quickstart(out=tmp_path / "quickstart")


def test_a_killed_stage_gives_the_exit_code_of_a_shell(tmp_path, program, monkeypatch):
    monkeypatch.setenv("DIES", "train")
    with pytest.raises(TfmError) as error:
        quickstart(out=tmp_path / "quickstart")
    assert error.value.exit_code == 128 + signal.SIGKILL


def test_ctrl_c_names_the_stage_that_it_stopped(tmp_path, program, monkeypatch):
    monkeypatch.setenv("INTERRUPTS", "binarize")
    with pytest.raises(InterruptedRunError, match=r"^quickstart: stopped in tfm binarize") as stop:
        quickstart(out=tmp_path / "quickstart")
    assert stop.value.exit_code == 130
    assert calls(tmp_path / "quickstart")[-1].startswith("binarize")


def test_the_examples_are_copied_and_listed_and_changed_ones_are_kept(tmp_path, capsys):
    folder = tmp_path / "examples"
    quickstart(examples=folder)
    listed = capsys.readouterr().out
    row = next(line for line in listed.splitlines() if line.endswith("Table 3, row C: 2 layers."))
    settings = Path(row.split()[0])
    assert settings == folder / "wmt14/table3/c-layers2.toml"
    assert run_config(None, tomllib.loads(settings.read_text())).model.num_encoder_layers == 2
    assert os.access(folder / "wmt14/run.sh", os.X_OK)
    settings.write_text("arch = 'tiny'")
    (folder / "wmt14/base.toml").unlink()
    with pytest.raises(UsageError, match="c-layers2"):
        quickstart(examples=folder)
    assert settings.read_text() == "arch = 'tiny'"
    assert not (folder / "wmt14/base.toml").exists()
