"""The command line: every mistake and every failure is one line and an exit code."""

import errno
import os
import re
import subprocess
import sys

import pytest

from tfm.cli import main as cli
from tfm.commands.translator import Translator
from tfm.errors import (
    CheckpointError,
    DataError,
    TfmError,
    UsageError,
)

TFM = [sys.executable, "-m", "tfm"]
FULL = "No space left on device: free space, or choose a folder on another disk"

pytestmark = pytest.mark.usefixtures("elsewhere")


def assert_complaint(result, code, pattern):
    """Assert that a command ended with a code, nothing on stdout and one line on stderr."""
    got, out, err = result
    assert got == code, err
    assert out == ""
    [line] = err.splitlines()
    assert re.fullmatch(f"tfm: {pattern}", line), line


# --- mistakes: exit code 2, one line


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("foo", r"no such command foo \(see tfm --help\)"),
        ("--foo", r"no such option --foo \(see tfm --help\)"),
        ("train -x", r"no such option -x \(see tfm train --help\)"),
        ("train --d-model wide", "--d-model is 'wide', but must be a whole number .*"),
        ("train --dropout much", "--dropout is 'much', but must be a number .*"),
        ("train --device gpu", "--device is 'gpu', but must be one of auto, cpu, cuda .*"),
        ("attend --layer top", "--layer is 'top', but must be a whole number .*"),
        ("export --check -1", "--check is -1, but must be from 0 to 1,000,000"),
        ("train . b", "train takes only DATA without a flag: leave out b"),
        ("doctor x", "doctor takes nothing without a flag: leave out x"),
        ("import", "import needs MODEL: .*"),
        ("train --seed", "--seed needs a whole number .*"),
        ("train --also-valid", "--also-valid needs NAME=DATA .*"),
        ("prepare --languages en", "--languages needs SRC TGT .*"),
        ("runs --json=1", "--json takes no value: give --json alone .*"),
        ("train --max-steps 0", "max_steps is 0, but must be at least 1"),
        ("train --dropout nan", "dropout is nan, but must be a finite number"),
        ("train --arch huge", r"unknown arch 'huge': choose one of base, big.*"),
        ("prepare", r"name a recipe \(.*wmt14-en-de.*"),
        ("prepare nonsense", "there is no recipe 'nonsense'.*"),
        ("prepare --train in.en in.en --no-verify", "--mirror, .* have no effect without a recipe"),
        ("prepare --train in.en in.en --fetch-only", ".* have no effect without a recipe"),
        ("score --bootstrap-samples 9", "the paired bootstrap needs a --baseline .*"),
        (
            "prepare --train a.en",
            r"--train takes two files, .* or one .tsv file .*a\.en",
        ),
        (
            "prepare --train in.en in.en",
            "name the folder of the new dataset, such as --out data/mine",
        ),
        ("prepare wmt14-en-de --test in.en in.en", "a recipe names its own files: leave out .*"),
        ("average --last 2 --best 2", "last and best exclude each other: give one"),
        ("generate --input in.en --split test", "--input and --split exclude each other: give one"),
        ("train --gpus all", "--gpus is all, but must be auto or from 1 to 9999"),
        ("train --processes 0", "--processes is 0, but must be from 1 to .* on this machine"),
        ("train --gpus 2 --processes 2", "--gpus and --processes exclude each other: give one"),
        ("train --gpus 2 --device cpu", "--gpus contradicts --device cpu: leave one out"),
        ("train --device mps", "--device is 'mps', but must be one of .*"),
        ("generate --gpus 2 --device mps", "--gpus contradicts --device mps: leave one out"),
        (
            "generate --processes 2 --device mps",
            "--processes N uses the CPU: leave out --device mps",
        ),
        (
            "train --processes 2 --device cuda",
            "--processes N uses the CPU: .* give --gpus N instead",
        ),
        ("train --nodes 2", "--nodes 2 needs on each node its own --node-rank and .*"),
        ("train --node-rank 0", "--node-rank and --rendezvous are for several nodes: .*"),
        (
            "train --nodes 2 --node-rank 2 --rendezvous a:1",
            "--node-rank is 2, but must be from 0 to 1",
        ),
        (
            "train --nodes 2 --node-rank 0 --rendezvous a",
            "--rendezvous is a, but must be HOST:PORT, such as .*",
        ),
        ("train --gpus 99 .", "--gpus.*torch sees .*"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, elsewhere, arguments, pattern):
    (elsewhere / "in.en").write_text("one\n")
    assert_complaint(run(*arguments.split()), 2, pattern)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("train --max-step 3", "--max-steps"),
        ("train --max_steps=3", "--max-steps"),
        ("train --checkpoint 3", "--checkpoint-minutes or --checkpoint-steps"),
        ("train --data x", "DATA without a flag"),
        ("train --batch-size 3", "--batch-tokens or --max-tokens"),
        ("generate --batch-size 3", "--max-tokens"),
        ("generate --model x", "MODEL without a flag"),
        ("evaluate", "tfm score"),
        ("--verison", "--version"),
        ("trian", "tfm train"),
        ("preprocess", "tfm prepare or tfm binarize"),
    ],
)
def test_typos_and_words_of_other_toolkits_get_a_suggestion(run, arguments, meant):
    assert_complaint(run(*arguments.split()), 2, f"no such .*: did you mean {meant}[?]")


@pytest.mark.parametrize("flag", ["generate --remove-bpe", "train --criterion=loss"])
def test_a_flag_for_what_always_happens_is_said_to_be_needless(run, flag):
    assert_complaint(run(*flag.split()), 2, "no such option --.*: leave it out, .*")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["generate", "A dog runs."], r"pipe it in: echo 'A dog runs.' \| tfm generate"),
        (["generate", "It's a dog."], r"""pipe it in: echo 'It'"'"'s a dog.' \| tfm generate"""),
        (["generate", "word " * 300], "pipe it in: echo .*"),
        (["generate", "in.en"], "to translate it, give --input in.en"),
        (["generate", "model/model.safetensors"], "name model, the model around it"),
        (["score", "out.de", "test.de"], "give --hypotheses out.de --reference test.de"),
        (["score", "out.de"], "give --hypotheses out.de or --reference out.de"),
        (
            ["score", "out.de", "1.de", "2.de"],
            "give --hypotheses out.de --reference 1.de --reference 2.de",
        ),
        (
            ["score", "--hypotheses", "in.en", "--reference", "in.en", "2.de"],
            "give --reference 2.de",
        ),
        (["help"], "see tfm --help"),
        (["help", "train"], "see tfm train --help"),
        (["report"], "each run has report.html in its folder, .*"),
    ],
)
def test_a_plausible_mistake_gets_the_command_that_is_meant(run, elsewhere, arguments, advice):
    (elsewhere / "in.en").write_text("one\n")
    (elsewhere / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (elsewhere / "model" / name).touch()
    assert_complaint(run(*arguments), 2, f".*[:,] {advice}")


@pytest.mark.parametrize("path", ["none", "empty", "no-checkpoint", "no-model", "data", ".", ""])
def test_a_missing_model_is_reported_alike_from_python(run, elsewhere, data_dir, path):
    for folder in ("empty", "no-checkpoint/checkpoints", "no-model"):
        (elsewhere / folder).mkdir(parents=True)
    for file in ("a.txt", "no-checkpoint/config.toml", "no-model/readme.txt", "in.en"):
        (elsewhere / file).write_text("one\n")
    (elsewhere / "data").symlink_to(data_dir)
    with pytest.raises(TfmError) as caught:
        Translator.load(path)
    code = caught.value.exit_code
    assert_complaint(run("generate", path, "--input", "in.en"), code, re.escape(str(caught.value)))


def test_settings_of_a_file_are_checked_like_flags(run, elsewhere):
    (elsewhere / "x.toml").write_text("[model]\nwidth = 3\ndropout = 2\n[optim]\na = 1\n")
    code, out, err = run("train", "--config", "x.toml", "--warmup-steps", 0)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"tfm: 4 mistakes:\n"
        r"  x\.toml:4: unknown section 'optim'.*\n"
        r"  x\.toml:2: unknown setting 'width' in \[model\].*\n"
        r"  x\.toml:3: dropout is 2\.0.*\n"
        r"  warmup_steps is 0.*\n",
        err,
    )


@pytest.fixture
def folders(elsewhere):
    """Make what shows a dataset, a run and its average."""
    for name in (
        *("data/d/manifest.json", "data/d/train.en", "data/d/bin/dataset.json"),
        *("runs/r/config.toml", "runs/r/data.json", "runs/r/checkpoints/step-00000001/config.json"),
        *("runs/r/averaged/config.json", "runs/r/averaged/model.safetensors"),
    ):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).touch()


AROUND, INSIDE = "name runs/r, the run around it", "name one of its runs, such as runs/r"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("train data/d --run runs/r/checkpoints", f"{AROUND}, or .*"),
        ("train data/d --run runs/r/averaged", f"{AROUND}, or .*"),
        ("train data/d --run runs/r/checkpoints/new", f"{AROUND}, or .*"),
        ("train data/d --run runs --dry-run", f"{INSIDE}, or .*"),
        ("train data/d/bin", "name data/d, the dataset around it"),
        ("train data", "name one of its datasets, such as data/d"),
        ("train runs/r", "it is a run"),
        ("binarize data/d/manifest.json", "name data/d, the dataset around it"),
        ("learn-bpe data/d/bin", "name data/d, the dataset around it"),
        ("average runs", INSIDE),
        ("average runs/r/checkpoints", AROUND),
        ("average runs/r/config.toml", AROUND),
        ("average data/d", "it is a dataset"),
        ("generate runs", INSIDE),
        ("generate runs/r/checkpoints", AROUND),
        (
            "generate runs/r/data.json",
            AROUND,
        ),
        ("generate data/d", "it is a dataset"),
        ("export runs/r/checkpoints", AROUND),
        ("attend runs x", INSIDE),
        ("train data/d --from runs/r/checkpoints", AROUND),
    ],
)
def test_a_folder_too_deep_or_too_high_is_answered_with_the_one_meant(
    run, folders, arguments, advice
):
    assert_complaint(run(*arguments.split()), 2, f".*: {advice}")


def test_the_folder_around_the_working_directory_is_found(run, folders, elsewhere, monkeypatch):
    monkeypatch.chdir(elsewhere / "runs" / "r" / "checkpoints")
    assert_complaint(run("average", "."), 2, f".*: name {elsewhere}/runs/r, the run around it")


@pytest.mark.parametrize("prefix", ["", "https://huggingface.co/", "hf://"])
def test_a_name_of_the_hub_is_answered_with_the_commands_that_import_it(run, prefix):
    advice = ".* hf download me/en-de --local-dir me/en-de .*, then tfm import me/en-de"
    assert_complaint(run("import", f"{prefix}me/en-de"), 2, advice)
    for name in ("en-de", "folder/model.pt", "a/b/c"):
        assert_complaint(run("import", name), 2, f"{name} does not exist: check its name")


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_dataset_is_no_run_folder(run, data_dir, flags):
    before = sorted(data_dir.iterdir())
    result = run("train", data_dir, "--arch", "tiny", "--run", data_dir, *flags)
    assert_complaint(result, 2, ".* is no run: it is a dataset, or choose a new folder with --run")
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
WRITTEN_FILES = ["generate --output PATH"]
WRITTEN_FOLDERS = [
    "prepare numbers-en-de --out PATH",
    "prepare numbers-en-de --downloads PATH",
    "train --run PATH",
    "average --out PATH",
    "export --out PATH",
    "quickstart --out PATH",
]
WRITTEN_ANY = ["attend sentence --out PATH"]


@pytest.fixture
def refuse(run, elsewhere):
    """Assert that a command ends with code 2 and a complaint about a path."""
    (elsewhere / "in.en").write_text("one\n")
    (elsewhere / "folder").mkdir()

    def check(command, path, pattern):
        words = [path if word == "PATH" else word for word in command.split()]
        assert_complaint(run(*words), 2, pattern)

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


@pytest.mark.parametrize("command", WRITTEN_FILES + WRITTEN_FOLDERS + WRITTEN_ANY)
def test_a_path_that_cannot_be_written_to_is_named(refuse, monkeypatch, command):
    path = "in.en/x.html"
    refuse(command, path, f"cannot write to {path}: .*in.en is not a folder: choose another name")

    def forbid(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", forbid)
    reason = r"cannot create files in .* \(Permission denied\)"
    refuse(command, "x.html", rf"cannot write to x\.html: {reason}: choose another name")


def test_checking_an_output_leaves_nothing_behind(run, elsewhere):
    assert run("train", "--run", "new", "--print-config")[0] == 0
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("train", "data/ holds no dataset: make one with tfm prepare .*"),
        ("learn-bpe folder", "folder is no dataset .*"),
        ("train folder", "folder is no dataset .*"),
        ("average", "runs/ holds no run with a checkpoint: start with tfm train"),
        ("generate", "runs/ holds no run with a checkpoint: start with tfm train"),
        ("average folder", "folder has no checkpoints: .*"),
        ("export folder", "folder is not a run or model folder: .*"),
        ("generate folder", "folder is not a run or model folder: .*"),
    ],
)
def test_a_missing_dataset_or_model_is_one_line(refuse, arguments, pattern):
    refuse(arguments, "", pattern)


# --- failures: exit code 1, one line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TfmError, 1),
        (DataError, 1),
        (CheckpointError, 1),
        (UsageError, 2),
    ],
)
def test_every_kind_of_error_is_one_line_and_its_exit_code(run, monkeypatch, error, code):
    def fail(*args, **kwargs):
        raise error("what and where: what to do")

    monkeypatch.setattr("tfm.applications.doctor.checks.diagnose", fail)
    assert_complaint(run("doctor"), code, "what and where: what to do")


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), f"a/b: {FULL}"),
        (OSError(errno.ENOSPC, "No space left on device"), FULL),
        (OSError("odd"), "odd"),
        *(
            (OSError(number, os.strerror(number), "a"), f"a: {os.strerror(number)}: .+")
            for number in (
                *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.EMFILE),
                *(errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.ESTALE),
            )
        ),
    ],
)
def test_an_operating_system_error_is_one_line(run, monkeypatch, error, pattern):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("tfm.applications.doctor.checks.diagnose", fail)
    assert_complaint(run("doctor"), 1, pattern)


def test_a_bug_keeps_its_traceback(monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("tfm.applications.doctor.checks.diagnose", fail)
    monkeypatch.setattr(sys, "argv", ["tfm", "doctor"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_is_one_line_and_exit_code_130(run, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfm.applications.doctor.checks.diagnose", stop)
    assert_complaint(run("doctor"), 130, "stopped")


# --- full disks and closed pipes


def test_output_to_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*TFM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, f"tfm: {FULL}\n")


def test_a_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    command = [*TFM, "train", "--print-config"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("ending", "arguments", "code"),
    [("full", "score --hypotheses out.txt --reference in.txt", 0), ("closed", "trian", 2)],
)
def test_messages_that_cannot_be_written_change_neither_output_nor_exit_code(
    elsewhere, ending, arguments, code
):
    for name in ("in.txt", "out.txt"):
        (elsewhere / name).write_text("one two three four\n")
    if ending == "full":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    command = [*TFM, *arguments.split()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert done.returncode == code
    assert ("BLEU = 100.00" in done.stdout) == (code == 0)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_closed_standard_stream_is_one_line(stream):
    done = subprocess.run(
        [*TFM, "score"],
        preexec_fn=lambda: os.close(stream),
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1 if stream else 2, "")
    assert stream == 2 or len(done.stderr.splitlines()) == 1
