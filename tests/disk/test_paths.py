"""Outputs of commands: they replace nothing that is read, no other output, and are never lost."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from helpers import contents, edit_model, python

import tfm
from tfm.disk.paths import new_output_folder
from tfm.errors import UsageError
from tfm.folders.run_folder import checkpoints

# Commands that read the files 1.txt, 2.txt and so on; the flags of their outputs follow.
READERS = """
generate model --input 1.txt --prefix 2.txt --glossary 3.txt --ban 4.txt | --output
generate model --mbr command --n-best 4 --metric-command 'cat<1.txt|sh 2.txt' | --output
score --hypotheses 1.txt --reference 2.txt --reference 3.txt --baseline 4.txt | --page
score --hypotheses 1.txt --reference 2.txt --source 3.txt --compare 4.txt | --per-line
check model --source 1.txt --reference 2.txt --ban 3.txt | --page
check model --source 1.txt --reference 2.txt --glossary 3.txt | --junit
evaluate model --on 1.txt:2.txt:3.txt --glossary 4.txt --ban 5.txt | --page
evaluate model --on 1.txt:2.txt --metric-command './3.txt --to=4.txt' | --page
""".strip().splitlines()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, trained_run):
    """Return a folder with texts, and a model for the commands that read it first."""
    monkeypatch.chdir(tmp_path)
    for number in range(1, 6):
        Path(f"{number}.txt").write_text(f"seven {number}\n")
    shutil.copytree(checkpoints(trained_run)[-1], "model")
    return tmp_path


def names_of(name):
    """Yield other names of a file: relative, absolute, and links to it."""
    Path("soft").symlink_to(name)
    Path("hard").hardlink_to(name)
    yield from (name, f"./model/../{name}", Path(name).absolute(), "soft", "hard")
    Path("soft").unlink()
    Path("hard").unlink()


@pytest.mark.parametrize("reader", READERS)
def test_nothing_that_is_read_is_overwritten(folder, run, reader):
    before = contents(folder)
    command, flag = reader.split(" | ")
    for name in re.findall(r"[0-9]\.txt", command):
        for output in names_of(name):
            pattern = rf"\S+ would be both read and overwritten: choose another name with {flag}"
            run.fails(2, pattern, *shlex.split(command), flag, output)
    assert contents(folder) == before


@pytest.mark.parametrize("ending", [".partial", ".partial.json"])
def test_the_files_of_a_continued_output_are_not_what_is_read(run, ending):
    Path("link").symlink_to("model/out")
    Path(f"model/out{ending}").write_text("seven\n")
    for name in names_of(f"model/out{ending}"):
        run.fails(2, "link would be .*", "generate", "model", "--input", name, "--output", "link")
    assert Path(f"model/out{ending}").read_text() == "seven\n"


@pytest.mark.parametrize(
    "command",
    [
        "score --hypotheses 1.txt --reference 2.txt --per-line new --page ./new",
        "check model --page new --junit link",
        "attend model seven --out new.html --out link.html",
        "evaluate model --page new --out new",
        "evaluate model --page new --out new/inside",
        "prepare numbers-en-de --out new --downloads ./new",
    ],
)
def test_two_outputs_are_never_one_file(folder, run, command):
    Path("link").symlink_to("new")
    Path("link.html").symlink_to("new.html")
    run.fails(2, r"--[a-z-]+ writes to \S+, too: choose another .* with --.*", *command.split())
    assert not [*folder.glob("new*")]


def test_python_functions_refuse_alike(folder):
    before = contents(folder)
    for call in (
        lambda: tfm.score("1.txt", ["2.txt", Path("3.txt")], page="./3.txt"),
        lambda: tfm.score(["seven " * 99], [["\0"]], per_line="new", page="new"),
        lambda: tfm.score(["seven"], [["seven"]], source="4.txt", page="4.txt"),
        lambda: tfm.generate("model", input="1.txt", ban="2.txt", output="2.txt"),
        lambda: tfm.evaluate("model", on="1.txt:2.txt", page=Path("2.txt").absolute()),
    ):
        with pytest.raises(UsageError, match=r"would be both read and overwritten|writes to"):
            call()
    assert contents(folder) == before


def test_own_files_of_runs_and_exports_are_not_replaced(run, data_dir):
    Path("model/tfm.json").write_text('{"files": ["vocab.json", "README.md"]}')
    for name in ("bpe.model", "tfm.json", "README.md", "vocab.json"):
        pattern = f"model/{name} belongs to a model: choose another name with --page"
        flags = ("--hypotheses", "1.txt", "--reference", "2.txt", "--page", f"model/{name}")
        run.fails(2, pattern, "score", *flags)
    Path("config.toml").write_text("# mine\n[training]\nmax_steps = 1\n")
    pattern = "config.toml would be both read and overwritten: choose another folder with --run"
    run.fails(2, pattern, "train", data_dir, "--config", "config.toml", "--run", ".")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "command", ["score --hypotheses 1.txt --reference 2.txt", "generate model"]
)
def test_standard_streams_are_not_appended_to_what_is_read(command, stream):
    with Path("1.txt").open("ab") as file, Path("1.txt").open("rb") as stdin:
        done = python("-m", "tfm", *command.split(), stdin=stdin, **{stream: file})
    assert done.returncode == 2
    assert "would be both read and overwritten" in (done.stderr or Path("1.txt").read_text())


@pytest.mark.parametrize(
    "command",
    ["evaluate model --on 2.txt:1.txt", "generate model --split test", "score --hypotheses 2.txt"],
)
def test_standard_output_is_no_file_that_a_command_finds(command, data_dir):
    shutil.copytree(data_dir, "data")
    Path("data/test.de").unlink()
    Path("data/test.de").hardlink_to("1.txt")
    edit_model(Path("model"), data_dir="data")
    Path("runs").mkdir()
    record = {"format": 1, "model": [], "source": "", "source_language": "en", "language": "de"}
    Path("runs/last-generation.json").write_text(json.dumps(record | {"references": ["1.txt"]}))
    with Path("1.txt").open("ab") as file:
        done = python("-m", "tfm", *command.split(), stdout=file)
    assert (done.returncode, Path("1.txt").read_text()) == (2, "seven 1\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("score --hypotheses 1.txt --reference 2.txt", 1),
        ("score --hypotheses 1.txt --reference 2.txt --json", 1),
        ("generate model --input 1.txt --device cpu", 1),
        ("generate model --input 1.txt --device cpu --output out", 0),
        ("models model", 1),
        ("attend model seven --out out.html", 0),
        ("--version", 1),
        ("score --hypotheses none --reference 2.txt", 2),
    ],
)
def test_output_to_a_closed_stream_is_an_error(command, code):
    done = python("-m", "tfm", *command.split(), preexec_fn=lambda: os.close(1))
    assert done.returncode == code
    assert ("tfm: standard output is closed, so the output is lost: " in done.stderr) == (code == 1)
    assert "Traceback" not in done.stderr
    assert (code == 0) == any(Path().glob("out*"))


@pytest.mark.parametrize(
    ("own", "force", "problem"),
    [
        (None, True, "exists and is no model: choose another folder"),
        (["a", "b"], False, "exists: replace it with --force, or"),
        (["a"], True, "b is not of the model, which --force would replace"),
        (["a", "b", "c"], True, None),
    ],
)
def test_a_folder_is_replaced_only_by_force_and_if_all_of_it_is_own(tmp_path, own, force, problem):
    new_output_folder(tmp_path / "new", own=own, kind="model", force=force)
    for name in ("a", "b"):
        (tmp_path / "old" / name).mkdir(parents=True)
    if problem is None:
        new_output_folder(tmp_path / "old", own=own, kind="model", force=force)
    else:
        with pytest.raises(UsageError, match=problem):
            new_output_folder(tmp_path / "old", own=own, kind="model", force=force)
