"""Check that a training saves and exits with 0 when a signal asks it to stop within a step.

SIGTERM and SIGUSR1 are sent by turns, at random moments of long steps of many microbatches; the
same command resumes each time. The final weights and all losses must equal those of an undisturbed
run, byte for byte.

    python benchmarks/faults/stop.py data/multi30k-en-de
    python benchmarks/faults/stop.py data/multi30k-en-de --processes 2
    python benchmarks/faults/stop.py data/multi30k-en-de --processes 2 --to all

With `--to all` every process gets the signal, launcher and ranks alike, as from Slurm.
"""

import random
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Job, Options, Out, Training, check_equal, fail, finish, send

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# Steps of many microbatches, saved only after a signal and at the end.
_LONG_STEPS = ("--batch-tokens", "40000", "--max-tokens", "500", "--checkpoint-steps", "1000")


def main(
    data: Data,
    options: Options = None,
    stops: Annotated[int, typer.Option(help="Number of stops.", min=1)] = 6,
    to: Annotated[
        Literal["launcher", "all"], typer.Option(help="Which processes get the signal.")
    ] = "launcher",
    processes: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random moments.")] = 1,
    out: Out = Path("runs/faults/stop"),
) -> None:
    """Stop a training again and again until it is done."""
    shutil.rmtree(out, ignore_errors=True)
    shared = (
        *("--processes", str(processes)) * (processes > 1),
        *("--device", "cpu") * (processes == 1),
        *_LONG_STEPS,
        *("--max-steps", str(2 * stops + 2)),
        *(options or ()),
    )
    undisturbed = Training(data=data, run_dir=out / "undisturbed", options=shared)
    disturbed = Training(data=data, run_dir=out / "disturbed", options=shared)
    finish(undisturbed)
    step_seconds = _step_seconds(undisturbed)
    print(f"undisturbed: {step_seconds:.1f} s per step")
    rng, waits = random.Random(seed), []
    for number in range(stops):
        job = disturbed.start()
        before = disturbed.logged_step()
        job.wait_until(lambda job=job, before=before: disturbed.logged_step() > before)
        time.sleep(rng.uniform(0, step_seconds))
        waits.append(_stop(job, _SIGNALS[number % len(_SIGNALS)], to))
        if disturbed.saved_step() < disturbed.logged_step():
            fail(f"step {disturbed.logged_step()} was done, but {disturbed.saved_step()} is saved")
    finish(disturbed)
    check_equal(disturbed, undisturbed)
    print(
        f"{stops} stops in steps of {step_seconds:.1f} s: exit 0 after {statistics.mean(waits):.1f}"
        f" s on average, at most {max(waits):.1f} s; final weights and all losses equal"
    )


def _step_seconds(training: Training) -> float:
    minutes = [record["minutes"] for record in training.records() if record["kind"] == "train"]
    return 60 * (minutes[-1] - minutes[0]) / (len(minutes) - 1)


def _stop(job: Job, number: signal.Signals, to: str) -> float:
    """Ask a job to stop; return the seconds until it has ended."""
    if not job.is_running:
        fail("training failed by itself", job)
    signaled = time.monotonic()
    for pid in job.pids() if to == "all" else [job.process.pid]:
        send(pid, number)
    code = job.end()
    seconds = time.monotonic() - signaled
    messages = [line for line in job.lines if "stopped and saved" in line]
    if code != 0 or len(messages) != 1:
        fail(f"{number.name}: exit code {code}, {len(messages)} messages that it has saved", job)
    if orphans := job.orphans():
        fail(f"processes {orphans} are left", job)
    print(f"{number.name}: {messages[0]} ({seconds:.1f} s)")
    return seconds


if __name__ == "__main__":
    typer.run(main)
