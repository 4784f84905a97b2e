"""Check that a training on a full disk continues, keeps its checkpoints, and saves again later.

The run folder is on a small file system in memory, which is filled after two checkpoints and kept
full for a time. During this time, training must continue and report that it cannot save; the saved
checkpoints must stay intact. When there is room again, training must save, and end with the weights
of an undisturbed run, byte for byte. Mounting the file system needs root; without it, the check is
skipped.

    sudo .venv/bin/python benchmarks/faults/full_disk.py data/multi30k-en-de
    sudo .venv/bin/python benchmarks/faults/full_disk.py data/multi30k-en-de -- --background-saving
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Options, Out, Training, check_whole, fail, finish

_DISK_MEGABYTES = 80
_WORDS_FOR_FULL_DISK = ("disk", "space")


def main(
    data: Data,
    options: Options = None,
    full_seconds: Annotated[float, typer.Option(help="How long the disk is full.")] = 20.0,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 250,
    out: Out = Path("runs/faults/full_disk"),
) -> None:
    """Fill the disk under a training."""
    if os.geteuid() != 0:
        print("skipped: only root can mount a file system")
        return
    shutil.rmtree(out, ignore_errors=True)
    shared = ("--device", "cpu", "--max-steps", str(steps), *(options or ()))
    undisturbed = Training(data=data, run_dir=out / "undisturbed", options=shared)
    print(f"undisturbed: {finish(undisturbed).seconds:.1f} s")
    with _small_disk(out / "disk") as disk:
        disturbed = Training(data=data, run_dir=disk / "run", options=shared)
        _train_on_full_disk(disturbed, disk / "ballast", full_seconds)
        missing = undisturbed.losses().keys() - disturbed.losses().keys()
        if any(undisturbed.losses()[s] != loss for s, loss in disturbed.losses().items()):
            fail("losses differ")
        if disturbed.saved_step() != steps or disturbed.weights() != undisturbed.weights():
            fail("final weights differ")
    print(f"final weights equal; {len(missing)} of {steps} lines of metrics.jsonl are missing")


def _train_on_full_disk(training: Training, ballast: Path, full_seconds: float) -> None:
    job = training.start()
    job.wait_until(lambda: len(training.checkpoints()) >= 2)
    _fill(ballast)
    # A checkpoint may have been complete except for its rename.
    time.sleep(0.5)
    _fill(ballast)
    saved_step = training.saved_step()
    until = time.monotonic() + full_seconds
    while time.monotonic() < until:
        if not job.is_running:
            fail("training ended when the disk was full", job)
        time.sleep(0.1)
        _fill(ballast)  # the space that a failed checkpoint has released
    if training.saved_step() != saved_step:
        fail("the disk was not full")
    for checkpoint in training.checkpoints()[-2:]:
        check_whole(checkpoint)
    warnings = [
        line for line in job.lines if any(word in line.lower() for word in _WORDS_FOR_FULL_DISK)
    ]
    if not warnings:
        fail("training did not report that it could not save", job)
    print(f"full for {full_seconds:.0f} s: step {saved_step} stayed saved\n  {warnings[-1]}")
    ballast.unlink()
    freed = time.monotonic()
    job.wait_until(lambda: training.saved_step() > saved_step)
    seconds = time.monotonic() - freed
    print(f"saved again at step {training.saved_step()}, {seconds:.1f} s after there was space")
    if job.end() != 0:
        fail("training failed", job)
    if partial := training.partial_checkpoints():
        fail(f"{partial} are left")


@contextlib.contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    path.mkdir(parents=True)
    size = f"size={_DISK_MEGABYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def _fill(path: Path) -> None:
    """Write to a file until the disk is full to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            _write_until_full(file, bytes(size))


def _write_until_full(file: IO[bytes], block: bytes) -> None:
    try:
        while True:
            file.write(block)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


if __name__ == "__main__":
    typer.run(main)
