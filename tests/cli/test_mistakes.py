"""The command line: every mistake and every failure is one line and an exit code."""

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python

from tfm.cli import main as cli
from tfm.commands.translator import Translator
from tfm.errors import CheckpointError, DataError, TfmError, UsageError
from tfm.folders.run_folder import checkpoints

FULL = "No space left on device: free space, or choose a folder on another disk"

pytestmark = pytest.mark.usefixtures("elsewhere")


# --- mistakes


def mistakes():
    """Read the table of mistakes: kind of folder, exit code, command, pattern."""
    table = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
    kind = ""
    for line in table.splitlines():
        if line.startswith("["):
            kind = line[1:].partition("]")[0]
        elif line and not line.startswith("#"):
            code, command, pattern = line.split(" | ", maxsplit=2)
            yield pytest.param(kind, int(code), command, pattern, id=command)


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


@pytest.fixture
def make(trained_run):
    """Make a folder of a kind that the table of mistakes names."""

    def files():
        touch("model/config.json", "model/model.safetensors", "empty")
        Path("folder").mkdir()
        Path("in.en").write_text("one\n")
        Path("codes").write_text("#version: 0.2\nt h\n")
        Path("tokenizer.json").write_text('{"version": "1.0", "truncation": null}')
        Path("other.jsonl").write_text('{"text": "one"}\n')
        Path("pairs.csv").write_text("one,eins\n")
        os.mkfifo("pipe")

    def folders():
        touch("data/d/manifest.json", "data/d/train.en", "data/d/bin/dataset.json")
        touch("runs/r/config.toml", "runs/r/data.json")
        touch("runs/r/checkpoints/step-00000001/config.json")
        touch("runs/r/averaged/config.json", "runs/r/averaged/model.safetensors")

    def model():
        Path("model").symlink_to(checkpoints(trained_run)[-1])
        Path("in.en").write_text("seven\non Monday\n")
        Path("out.de").write_text("sieben\nam Montag\n")
        Path("empty").write_text("\n")

    return {"files": files, "folders": folders, "model": model}


@pytest.mark.parametrize(("kind", "code", "command", "pattern"), list(mistakes()))
def test_a_mistake_is_one_line_that_says_what_to_do(run, make, kind, code, command, pattern):
    make[kind]()
    run.fails(code, pattern, *shlex.split(command))


def test_a_text_of_any_length_in_place_of_a_path_is_a_mistake(run):
    run.fails(2, ".*[:,] pipe it in: echo .*", "generate", "word " * 300)


@pytest.mark.parametrize("path", ["none", "empty", "no-checkpoint", "no-model", "data", ".", ""])
def test_a_missing_model_is_reported_alike_from_python(run, elsewhere, data_dir, path):
    for folder in ("empty", "no-checkpoint/checkpoints", "no-model"):
        (elsewhere / folder).mkdir(parents=True)
    for file in ("a.txt", "no-checkpoint/config.toml", "no-model/readme.txt", "in.en"):
        (elsewhere / file).write_text("one\n")
    (elsewhere / "data").symlink_to(data_dir)
    with pytest.raises(TfmError) as caught:
        Translator.load(path)
    message = re.escape(str(caught.value))
    run.fails(caught.value.exit_code, message, "generate", path, "--input", "in.en")


def test_files_may_have_any_name_but_folders_only_one_in_utf8(run, trained_run):
    name = os.fsdecode(b"x\xff.html")
    run.ok("attend", trained_run, "seven", "--out", name)
    assert Path(name).is_file()
    pattern = r"cannot write to x\\udcff\.html: its name is not UTF-8: .*"
    run.fails(2, pattern, "train", "--run", name)


def test_settings_of_a_file_are_checked_like_flags(run, elsewhere):
    (elsewhere / "x.toml").write_text("\ufeff[model]\nwidth = 3\ndropout = 2\n[optim]\na = 1\n")
    pattern = (
        r"4 mistakes:\n"
        r"  x\.toml:4: unknown section 'optim'.*\n"
        r"  x\.toml:2: unknown setting 'width' in \[model\].*\n"
        r"  x\.toml:3: dropout is 2\.0.*\n"
        r"  --warmup-steps is 0.*"
    )
    run.fails(2, pattern, "train", "--config", "x.toml", "--warmup-steps", 0)


def test_the_folder_around_the_working_directory_is_found(run, make, elsewhere, monkeypatch):
    make["folders"]()
    monkeypatch.chdir(elsewhere / "runs" / "r" / "checkpoints")
    run.fails(2, f".*: name {elsewhere}/runs/r, the run around it", "average", ".")


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_dataset_is_no_run_folder(run, data_dir, flags):
    before = sorted(data_dir.iterdir())
    pattern = ".* is no run: it is a dataset: name a run, or choose a folder elsewhere with --run"
    run.fails(2, pattern, "train", data_dir, "--arch", "tiny", "--run", data_dir, *flags)
    assert sorted(data_dir.iterdir()) == before


# --- wrong paths: exit code 2, one line

READ_FILES = [
    "prepare --train PATH in.en",
    "prepare --train in.en in.en --valid in.en PATH",
    "prepare --train in.en in.en --test PATH in.en",
    "train --config PATH",
    "generate --input PATH",
    "generate --prefix PATH",
    "generate --score-target PATH",
    "score --hypotheses PATH",
    "score --reference PATH",
    "score --baseline PATH",
]
READ_FOLDERS = [
    "learn-bpe PATH",
    "binarize PATH",
    "train PATH",
    "train --dry-run PATH",
    "average PATH",
    "export PATH",
    "generate PATH",
    "attend PATH sentence",
]
READ_ANY = ["prepare --train-trees PATH", "prepare --train-trees in.en --valid-trees PATH"]
WRITTEN = [
    "generate --output PATH",
    "prepare numbers-en-de --out PATH",
    "prepare numbers-en-de --downloads PATH",
    "train --run PATH",
    "average --out PATH",
    "export --out PATH",
    "quickstart --out PATH",
    "attend sentence --out PATH",
]


@pytest.fixture
def refuse(run, make):
    """Assert that a command ends with code 2 and a complaint about a path."""
    make["files"]()

    def check(command, path, pattern):
        run.fails(2, pattern, *(path if word == "PATH" else word for word in command.split()))

    return check


@pytest.mark.parametrize("command", READ_FILES + READ_FOLDERS + READ_ANY)
def test_a_path_that_does_not_exist_is_named(refuse, command):
    refuse(command, "nowhere", "nowhere does not exist: check its name")


@pytest.mark.parametrize("command", READ_FILES)
def test_a_folder_in_place_of_a_file_is_named(refuse, command):
    refuse(command, "folder", "folder is a folder, not a file: check its name")


@pytest.mark.parametrize("command", READ_FOLDERS)
def test_a_file_in_place_of_a_folder_is_named(refuse, command):
    refuse(command, "in.en", r"in\.en is a file, not a (model or run )?folder: .*")


@pytest.mark.parametrize("command", READ_FILES + READ_FOLDERS[:-1] + READ_ANY)
def test_a_path_that_may_not_be_read_is_named(refuse, monkeypatch, command):
    path = "folder" if command in READ_FOLDERS else "in.en"
    monkeypatch.setattr(os, "access", lambda *_: False)
    refuse(command, path, f"'{path}' is not readable: Permission denied: .*")


@pytest.mark.parametrize("command", WRITTEN)
def test_a_path_that_cannot_be_written_to_is_named(refuse, monkeypatch, command):
    path = "in.en/x.html"
    refuse(command, path, f"cannot write to {path}: .*in.en is not a folder: choose another name")

    def forbid(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", forbid)
    reason = r"cannot create files in .* \(Permission denied\)"
    refuse(command, "x.html", rf"cannot write to x\.html: {reason}: choose another name")


def test_checking_an_output_leaves_nothing_behind(run, elsewhere):
    run.ok("train", "--run", "new", "--print-config")
    assert list(elsewhere.iterdir()) == []


# --- failures: exit code 1, one line


@pytest.fixture
def raises(monkeypatch):
    """Let tfm doctor raise an error."""

    def arrange(error):
        def fail(*args, **kwargs):
            raise error

        monkeypatch.setattr("tfm.applications.doctor.checks.diagnose", fail)

    return arrange


OS_ERRORS = [errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENAMETOOLONG]
OS_ERRORS += [errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.ESTALE]


@pytest.mark.parametrize(
    ("error", "code", "pattern"),
    [
        *((kind("what: do this"), 1, "what: do this") for kind in (TfmError, DataError)),
        (CheckpointError("what: do this"), 1, "what: do this"),
        (UsageError("what: do this"), 2, "what: do this"),
        (KeyboardInterrupt(), 130, "stopped"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), 1, f"a/b: {FULL}"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, FULL),
        (OSError("odd"), 1, "odd"),
        *(
            (OSError(number, os.strerror(number), "a"), 1, f"a: {os.strerror(number)}: .+")
            for number in OS_ERRORS
        ),
    ],
)
def test_every_kind_of_error_is_one_line_and_its_exit_code(run, raises, error, code, pattern):
    raises(error)
    run.fails(code, pattern, "doctor")


def test_a_bug_keeps_its_traceback(raises, monkeypatch):
    raises(ZeroDivisionError())
    monkeypatch.setattr(sys, "argv", ["tfm", "doctor"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# --- full disks and closed pipes


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk():
    return os.open("/dev/full", os.O_WRONLY)


def test_output_to_a_full_disk_is_one_line_and_a_closed_pipe_is_quiet():
    for writer, arguments, err in (
        (full_disk(), ["--help"], f"tfm: {FULL}\n"),
        (closed_pipe(), ["train", "--print-config"], ""),
    ):
        done = python("-m", "tfm", *arguments, stdout=writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, err)


def test_messages_that_cannot_be_written_change_neither_output_nor_exit_code(elsewhere):
    for name in ("in.txt", "out.txt"):
        (elsewhere / name).write_text("one two three four\n")
    for writer, command, code in (
        (full_disk(), "score --hypotheses out.txt --reference in.txt", 0),
        (closed_pipe(), "trian", 2),
    ):
        done = python("-m", "tfm", *command.split(), stderr=writer)
        os.close(writer)
        assert (done.returncode, "BLEU = 100.00" in done.stdout) == (code, code == 0)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_closed_standard_stream_is_one_line(stream):
    done = python("-m", "tfm", "score", preexec_fn=lambda: os.close(stream), stdin=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1 if stream else 2, "")
    assert stream == 2 or len(done.stderr.splitlines()) == 1
