"""A training that is asked to stop in the middle of a step saves, says so and exits with 0.

SIGTERM and SIGUSR1 in turn, at random moments of long steps that accumulate many parts; the same
command goes on each time. At the end the weights must be those of a run that was never stopped,
byte for byte, and all losses too.

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
# Steps of many parts, saved only when they are asked to stop, and at the end.
_LONG_STEPS = ("--batch-tokens", "40000", "--max-tokens", "500", "--checkpoint-steps", "1000")


def main(
    data: Data,
    options: Options = None,
    stops: Annotated[int, typer.Option(help="Stop so many times.", min=1)] = 6,
    to: Annotated[
        Literal["launcher", "all"], typer.Option(help="Which processes get the signal.")
    ] = "launcher",
    processes: Annotated[int, typer.Option(help="As of tfm train.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
    out: Out = Path("runs/faults/stop"),
) -> None:
    """Stop a training until it is done."""
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
    print(f"undisturbed: {step_seconds:.1f} s a step")
    rng, waits = random.Random(seed), []
    for number in range(stops):
        job = disturbed.start()
        before = disturbed.logged_step()
        job.wait_until(lambda job=job, before=before: disturbed.logged_step() > before)
        time.sleep(rng.uniform(0, step_seconds))
        waits.append(_stop(job, _SIGNALS[number % len(_SIGNALS)], to))
        if disturbed.saved_step() < disturbed.logged_step():
            fail(f"step {disturbed.logged_step()} was done, {disturbed.saved_step()} is saved")
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
    """Ask a job to stop; return how many seconds it takes."""
    if not job.is_running:
        fail("it ended by itself", job)
    asked = time.monotonic()
    for pid in job.pids() if to == "all" else [job.process.pid]:
        send(pid, number)
    code = job.end()
    seconds = time.monotonic() - asked
    said = [line for line in job.lines if "goes on" in line]
    if code != 0 or len(said) != 1:
        fail(f"{number.name}: exit code {code}, and said how to go on {len(said)} times", job)
    if orphans := job.orphans():
        fail(f"processes {orphans} are left", job)
    print(f"{number.name}: {said[0]} ({seconds:.1f} s)")
    return seconds


if __name__ == "__main__":
    typer.run(main)
