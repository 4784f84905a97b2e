"""Check that a stalled process ends the run within the timeout, and is named.

One of several processes gets SIGSTOP, first rank 0, then the last; the others wait for it in an
all-reduce of gradients. The job must end by itself, name the rank once, and leave no process
behind, not even the stopped one. The same command must then resume, and reach the weights of an
undisturbed run.

    python benchmarks/faults/stall.py data/multi30k-en-de
    python benchmarks/faults/stall.py data/multi30k-en-de --processes 3 --stall-minutes 0.2
"""

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Job, Options, Out, Training, check_equal, fail, finish, send

# Time for the other ranks to notice, and for the launcher to end the remaining processes.
_MARGIN_SECONDS = 15.0


def main(
    data: Data,
    options: Options = None,
    stall_minutes: Annotated[float, typer.Option(help="Timeout of the watchdog.")] = 0.1,
    processes: Annotated[int, typer.Option(help="Number of processes.", min=2)] = 2,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 60,
    out: Out = Path("runs/faults/stall"),
) -> None:
    """Stop one process of a training, and wait until all have ended."""
    shutil.rmtree(out, ignore_errors=True)
    shared = (
        *("--processes", str(processes), "--stall-minutes", str(stall_minutes)),
        *("--max-steps", str(steps), *(options or ())),
    )
    undisturbed = Training(data=data, run_dir=out / "undisturbed", options=shared)
    disturbed = Training(data=data, run_dir=out / "disturbed", options=shared)
    finish(undisturbed)
    for rank in (0, processes - 1):
        job = disturbed.start()
        before = disturbed.logged_step()
        job.wait_until(lambda before=before: disturbed.logged_step() > before + 5)
        _stall(job, rank, 60 * stall_minutes)
    finish(disturbed)
    check_equal(disturbed, undisturbed)
    print("final weights and all losses equal")


def _stall(job: Job, rank: int, timeout_seconds: float) -> None:
    send(job.workers()[rank], signal.SIGSTOP)
    stopped = time.monotonic()
    code = job.end(within_seconds=timeout_seconds + _MARGIN_SECONDS)
    seconds = time.monotonic() - stopped
    named = [line for line in job.lines if f"rank {rank} (" in line and "stopped" in line]
    if code == 0 or len(named) != 1:
        fail(f"rank {rank} was stopped: exit code {code}, named {len(named)} times", job)
    if orphans := job.orphans():
        fail(f"processes {orphans} are left", job)
    print(f"  {named[0]}\nrank {rank} stopped: all ended after {seconds:.1f} s")


if __name__ == "__main__":
    typer.run(main)
