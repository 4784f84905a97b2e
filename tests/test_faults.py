"""Kills, a full disk, damaged files, mistaken values: nothing is lost, and nothing is a traceback.

Moments, damage and values are random, by fixed seeds.
"""

import contextlib
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import time
import typing
from dataclasses import fields
from typing import Literal

import pytest
import typer
from damage import damage

from tfm.cli.main import app
from tfm.config import RUN_SETTINGS
from tfm.errors import DETAIL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and mount")

# Run a command in a folder, with at most 2 GiB more memory than torch itself needs.
TFM = """
import os, pathlib, resource, sys
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
os.chdir(sys.argv.pop(1))
from tfm.cli.main import main
main()
"""


@pytest.fixture
def tfm(fork_python, tmp_path):
    """Start a command in the test's folder."""

    def start(*arguments):
        return fork_python(TFM, tmp_path, *arguments)

    return start


# --- kills and a full disk


def losses(run_dir):
    """Return the loss of each step. A kill may have cut the last line."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


def saved(run_dir):
    """Return the complete checkpoints, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-" + 8 * "[0-9]"))


def weights(run_dir):
    """Return the bytes of the newest weights."""
    return (saved(run_dir)[-1] / "model.safetensors").read_bytes()


def wait_for(condition, process, *, seconds=60):
    """Wait for a condition or the end of the process; return whether the condition holds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and process.poll() is None:
        assert time.monotonic() < deadline, process.errors
        time.sleep(0.0005)
    return found


@pytest.fixture
def training(tfm, data_dir, trained_run, tmp_path):
    """Start or resume a training in a run folder; 60 steps take seconds."""

    def start(run_dir, *flags):
        settings = ("--config", trained_run / "config.toml", "--max-steps", 60)
        steps = ("--checkpoint-steps", 5, "--log-steps", 1, "--keep-last", 3)
        return tfm("train", data_dir, "--run", run_dir, *settings, *steps, *flags)

    def finish(run_dir, *flags):
        process = start(run_dir, *flags)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors

    finish(tmp_path / "undisturbed")
    start.finish = finish
    return start


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--background-saving"]], ids=["", "in the background"])
def test_a_training_killed_at_random_moments_ends_as_one_that_was_not(training, tmp_path, flags):
    run_dir, generator = tmp_path / "killed", random.Random(1)
    num_kills = 0
    for number in range(10):
        before = len(losses(run_dir))
        process = training(run_dir, *flags)
        if number % 3 == 0:  # while it saves
            wait_for(lambda: list(run_dir.glob("checkpoints/*.partial")), process)
            time.sleep(generator.uniform(0, 0.01))
        else:
            until = before + generator.randrange(8)
            wait_for(lambda until=until: len(losses(run_dir)) >= until, process)
            time.sleep(generator.uniform(0, 0.1))
        num_kills += process.poll() is None
        process.kill()
        process.communicate()
        # Saving in the background may be one checkpoint behind.
        newest = max(losses(run_dir), default=0)
        lost = newest - max((int(path.name[5:]) for path in saved(run_dir)), default=0)
        assert lost <= 5 * (1 + bool(flags))
    training.finish(run_dir, *flags)
    assert num_kills >= 7
    assert losses(run_dir) == losses(tmp_path / "undisturbed")
    assert weights(run_dir) == weights(tmp_path / "undisturbed")


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 4 MB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs root and the right to mount")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(path):
    """Write to a file until the disk is full to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.mark.slow
def test_a_training_on_a_full_disk_continues_and_saves_when_there_is_room(
    training, small_disk, tmp_path
):
    run_dir, ballast = small_disk / "run", small_disk / "ballast"
    process = training(run_dir)
    assert wait_for(lambda: len(saved(run_dir)) >= 2, process)
    while "cannot save" not in process.errors:
        assert process.poll() is None, process.errors
        fill(ballast)
    fill(ballast)
    at_full = saved(run_dir)
    assert "disk full" in process.errors
    ballast.unlink()
    assert wait_for(lambda: saved(run_dir)[-1] != at_full[-1], process)
    process.communicate(timeout=120)
    assert process.returncode == 0, process.errors
    logged, expected = losses(run_dir), losses(tmp_path / "undisturbed")
    assert logged.items() <= expected.items()  # lines of a full disk may be missing
    assert weights(run_dir) == weights(tmp_path / "undisturbed")
    assert not list((run_dir / "checkpoints").glob("*.partial"))


# --- damaged files


def assert_result_or_one_line(process, case, *, seconds=60):
    """Assert that a command ended with a result, or with a code of 1 or 2 and one message."""
    output, errors = process.communicate(timeout=seconds)
    assert "Traceback" not in errors, f"{case}\n{errors}"
    assert process.returncode in (0, 1, 2), f"{case}\n{errors}"
    if process.returncode:
        lines = [line for line in errors.splitlines() if line]
        while lines and lines[-1].startswith(DETAIL.strip("\n")):  # a line for each mistake
            lines.pop()
        messages = [line for line in lines if line.startswith("tfm: ")]
        assert messages == lines[-1:], f"{case}\n{errors}"
    return output


@pytest.fixture
def copies(data_dir, trained_run, tmp_path):
    """Return a function that copies a dataset, a run on it and a text into the test's folder."""

    def copy():
        for name, folder in {"data": data_dir, "run": trained_run}.items():
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(folder, tmp_path / name)
        text = (data_dir / "test.en").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "in.en").write_text("".join(text[:3]), encoding="utf-8")
        for name in ("new", "averaged"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)

    return copy


# The files to damage, with a command that reads them.
READERS = {
    "a model": (
        "run/checkpoints/step-00000012/[!t]*",
        "generate run/checkpoints/step-00000012 --input in.en --max-extra-length 1",
    ),
    "checkpoints": ("run/checkpoints/*/[!t]*", "average run --last 2 --out averaged"),
    "a run": ("run/**/*.*", "train data --run run --max-steps 13"),
    "a dataset": ("data/**/*.*", "train data --run new --config run/config.toml --max-steps 1"),
    "a subword model": ("data/bpe.model", "binarize data --force"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("files", "command"), READERS.values(), ids=READERS)
def test_damaged_files_give_a_result_or_one_line(tfm, copies, tmp_path, files, command):
    copies()
    whole = tfm(*command.split())
    expected, errors = whole.communicate()
    assert whole.returncode == 0, errors
    for number in range(25):
        copies()
        generator = random.Random(number)
        path = generator.choice(sorted(each for each in tmp_path.glob(files) if each.is_file()))
        case = f"case {number}: {damage(generator, path)}"
        process = tfm(*command.split())
        output = assert_result_or_one_line(process, case)
        # Translations are those of the original, unless the damage was found.
        assert process.returncode or output == expected, case
        assert not list(tmp_path.rglob("outside*")), case


# --- mistaken values

FORECASTS = (
    "train data --device cpu --arch tiny --run new --dry-run",
    "train data --device cpu --arch tiny --print-config",
)
# They end soon with any value that their flags accept.
COMMANDS = (
    *FORECASTS,
    "train data --device cpu --run run",  # which is finished
    "average run --out averaged",
    "export run --out exported",
    "generate run --device cpu --input in.en --max-extra-length 1",
    "generate run --device cpu --input in.en --max-extra-length 1 --search sample",
    "generate run --device cpu --input in.en --max-extra-length 1 --search exact --node-limit 5",
    "generate run --device cpu --input in.en --score-target in.en",
    "score --hypotheses in.en --reference in.en --baseline data/valid.en",
    "prepare --train data/train.en data/train.de --out new --vocab-size 330",
    "learn-bpe data --vocab-size 330 --force",
    "binarize data --force",
    "attend run one --out attention.html",
)
WORD_FLAGS = ("--arch", "--gpus", "--language", "--metric")
NUMBERS = (
    *("-1", "0", "-0", "0.5", "1e-300", "-1e300", "1e300", "1e999", "nan", "inf", "-inf"),
    *map(str, (2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**12, 10**30)),
    "9" * 5_000,
)
WORDS = (
    *("", " ", "x", "many", "1 2", "1,000", "0x10", "1_000", "--", "true", "None", "auto"),
    *("\u0663", "\u00b2", "\uff11", "1\u00a0", "\x1b[2J", "\n", "1\n2", "\udcff", "\u6f22" * 40),
    "x" * 100_000,
)


def flag_types(words):
    """Return {flag: type} of the flags of a command that take a number, a choice or a word."""
    command = typer.main.get_command(app).commands[words[0]]
    parameters = inspect.signature(command.callback).parameters
    hints = {each.opts[0]: parameters[each.name].annotation for each in command.params}
    return {
        flag: kinds
        for flag, hint in hints.items()
        if (kinds := {typing.get_origin(each) or each for each in (hint, *typing.get_args(hint))})
        if flag.startswith("--") and (kinds & {int, float, Literal} or flag in WORD_FLAGS)
    }


def limits(flag):
    """Return the smallest and the largest value of a flag of training."""
    return [
        str(limit)
        for kind in RUN_SETTINGS
        for item in fields(kind)
        for limit in item.metadata["rules"].limits
        if item.name == flag[2:].replace("-", "_") and limit is not None
    ]


def mistaken(generator):
    """Return a command with a value that may be mistaken or extreme."""
    command = generator.choice(COMMANDS)
    types = flag_types(command.split())
    flag = generator.choice(list(types))
    values = [*NUMBERS, *WORDS]
    if types[flag] & {int, float}:
        values += 3 * NUMBERS
        if command in FORECASTS:
            values += 10 * limits(flag)
    return [*command.split(), flag, generator.choice(values)]


@pytest.mark.slow
def test_any_value_of_a_flag_gives_a_result_or_one_line(tfm, copies):
    for number in range(200):
        copies()
        arguments = mistaken(random.Random(number))
        assert_result_or_one_line(tfm(*arguments), f"case {number}: {arguments}"[:300])
