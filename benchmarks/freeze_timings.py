"""Time two versions of tfm in turn."""

import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from freeze_version import Version
from runs import markdown

TRAINING = (
    "train numbers --run runs/timed --arch tiny --precision fp32 --checkpoint-steps 1000"
    " --validation-beam 0 --best-metric loss --no-average"
)
NUM_SAMPLES = 10_000  # of the bootstrap

Command = tuple[list[str | Path], bytes]  # its arguments, and its standard input


def timings(before: Version, after: Version, *, num_pairs: int) -> str:
    """Return a table of the times of processes: medians, and mean ratios with 95 % intervals."""
    before.train_model()
    after.numbers()
    rows = []
    for name, command in _commands(before).items():
        print(name, file=sys.stderr)
        times = _times(before, after, command, num_pairs)
        medians = [f"{seconds:.2f} s" for seconds in np.median(times[:, :, 0], axis=0)]
        log_ratios = np.log(times[:, 1] / times[:, 0])  # [num_pairs, wall or CPU]
        rows.append([name, *medians, *map(_with_interval, log_ratios.T)])
    return markdown(["command", "before", "after", "ratio of times", "of CPU times"], rows)


def _commands(version: Version) -> dict[str, Command]:
    lines = (version.numbers() / "test.en").read_bytes().splitlines(keepends=True)
    generate: list[str | Path] = ["generate", version.model, "--precision", "fp32"]
    return {
        "--help": (["--help"], b""),
        "prepare": (["prepare", "numbers.toml", "--out", "runs/data"], b""),
        "generate, 1 line": (generate, lines[0]),
        "generate, 200 lines": (generate, b"".join(lines[:200])),
        "train, 50 steps": ([*TRAINING.split(), "--max-steps", "50"], b""),
    }


def _times(before: Version, after: Version, command: Command, num_pairs: int) -> np.ndarray:
    """Return wall and CPU times [num_pairs, 2, 2]; a first pair, which compiles, is left out."""
    versions = [before, after] * (num_pairs + 1)
    return np.array([_seconds(version, command) for version in versions]).reshape(-1, 2, 2)[1:]


def _seconds(version: Version, command: Command) -> tuple[float, float]:
    """Return the wall and CPU time of a command."""
    shutil.rmtree(version.work / "runs", ignore_errors=True)
    arguments, text = command
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    version.run(*arguments, text=text).check_returncode()
    seconds, usage = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, usage.ru_utime + usage.ru_stime - used.ru_utime - used.ru_stime


def _with_interval(log_ratios: np.ndarray) -> str:
    """Return the mean ratio, and its interval by the bootstrap."""
    samples = np.random.default_rng(0).choice(log_ratios, (NUM_SAMPLES, len(log_ratios)))
    low, high = np.exp(np.percentile(samples.mean(axis=1), [2.5, 97.5]))
    return f"{np.exp(log_ratios.mean()):.3f} ({low:.3f}–{high:.3f})"
