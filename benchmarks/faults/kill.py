"""Check that a training killed many times ends with the weights of an undisturbed one.

Train once without a disturbance; then train the same in another folder, kill it at random moments,
a third of them while a checkpoint is being written, and run the same command again each time. The
final weights and all losses must be equal byte for byte, and no kill may lose more than the steps
since the last checkpoint.

    python benchmarks/faults/kill.py data/multi30k-en-de --kills 30
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim group
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim rank --kills 10
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim launcher
    python benchmarks/faults/kill.py data/multi30k-en-de -- --background-saving

If the victim is one rank, the launcher must end by itself, name that rank and leave no process
behind. If the victim is the launcher, the ranks must end by themselves. Linux only.
"""

import math
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Job, Options, Out, Training, check_equal, check_whole, fail, finish, send

_END_SECONDS = 60.0

Victim = Literal["group", "rank", "launcher"]


@dataclass
class Tally:
    """The consequences of the kills."""

    kills: int = 0
    while_saving: int = 0
    steps_lost: int = 0
    max_lost: int = 0
    max_end_seconds: float = 0.0

    def __str__(self) -> str:
        end = f", at most {self.max_end_seconds:.1f} s until all processes had ended"
        return (
            f"{self.kills} kills, {self.while_saving} of them while saving; {self.steps_lost} "
            f"steps lost in all, at most {self.max_lost} by one kill"
            f"{end if self.max_end_seconds else ''}"
        )


def main(
    data: Data,
    options: Options = None,
    kills: Annotated[int, typer.Option(help="Number of kills.", min=1)] = 30,
    victim: Annotated[Victim, typer.Option(help="Processes to kill.")] = "group",
    processes: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 200,
    checkpoint_steps: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the random moments.")] = 1,
    out: Out = Path("runs/faults/kill"),
) -> None:
    """Kill a training again and again until it is done."""
    if victim != "group" and processes == 1:
        raise typer.BadParameter("one process has no ranks: give --processes 2")
    shutil.rmtree(out, ignore_errors=True)
    shared = (
        *("--processes", str(processes)) * (processes > 1),
        *("--device", "cpu") * (processes == 1),
        *("--max-steps", str(steps), "--checkpoint-steps", str(checkpoint_steps)),
        *(options or ()),
    )
    undisturbed = Training(data=data, run_dir=out / "undisturbed", options=shared)
    disturbed = Training(data=data, run_dir=out / "disturbed", options=shared)
    job = undisturbed.start()
    job.wait_until(lambda: undisturbed.logged_step() > 0)
    startup_seconds = job.seconds
    if job.end() != 0:
        fail("the undisturbed run failed", job)
    print(
        f"undisturbed: {steps} steps in {job.seconds:.1f} s, the first after "
        f"{startup_seconds:.1f} s"
    )
    window = _window_seconds(job.seconds - startup_seconds, startup_seconds, kills)
    # Saving in the background may lag one checkpoint behind.
    max_steps_lost = checkpoint_steps * (2 if "--background-saving" in shared else 1)
    tally = _kill_until_done(
        disturbed, victim, kills, startup_seconds + window, max_steps_lost, random.Random(seed)
    )
    if tally.kills < kills:
        print(f"done after only {tally.kills} kills: give more --steps")
    check_equal(disturbed, undisturbed)
    print(f"{tally}; final weights and all losses equal")


def _window_seconds(training: float, startup: float, kills: int) -> float:
    """Return the window after startup in which to kill, so that the training needs N kills.

    A process killed at a uniformly random moment within startup and a window w trains for
    w² / 2(startup + w) on average; the sum over all kills, with a margin, is the whole training.
    """
    per_kill = training / (2.5 * kills)
    return per_kill + math.sqrt(per_kill**2 + 2 * per_kill * startup)


def _kill_until_done(
    training: Training,
    victim: Victim,
    kills: int,
    max_seconds: float,
    max_steps_lost: int,
    rng: random.Random,
) -> Tally:
    tally = Tally()
    while tally.kills < kills:
        leftovers = set(training.partial_checkpoints())
        job = training.start()
        if not _wait_for_moment(job, training, rng.uniform(0, max_seconds), rng):
            if job.end() != 0:
                fail("training failed by itself", job)
            return tally
        _kill(job, victim, tally, rng)
        tally.kills += 1
        tally.while_saving += bool(set(training.partial_checkpoints()) - leftovers)
        for checkpoint in training.checkpoints()[-1:]:
            check_whole(checkpoint)
        lost = max(0, training.logged_step() - training.saved_step())
        tally.steps_lost += lost
        tally.max_lost = max(tally.max_lost, lost)
        if lost > max_steps_lost:
            fail(f"{lost} steps lost by one kill")
        print(f"kill {tally.kills} at {job.seconds:.1f} s: step {training.saved_step()} is saved")
    finish(training)
    return tally


def _wait_for_moment(job: Job, training: Training, seconds: float, rng: random.Random) -> bool:
    """Wait for the moment to kill, for a third until it saves; return whether it still runs."""
    leftovers = set(training.partial_checkpoints())
    job.wait_until(lambda: job.seconds >= seconds, poll_seconds=0.005)
    if rng.random() < 1 / 3:
        job.wait_until(
            lambda: bool(set(training.partial_checkpoints()) - leftovers), poll_seconds=0.0005
        )
        time.sleep(rng.uniform(0, 0.02))
    return job.is_running


def _kill(job: Job, victim: Victim, tally: Tally, rng: random.Random) -> None:
    workers = job.workers()
    killed = time.monotonic()
    if victim == "group" or len(workers) < 2:  # the ranks have not started yet
        job.kill()
        return
    if victim == "launcher":
        send(job.process.pid, signal.SIGKILL)
        job.process.wait()
        if job.orphans(within_seconds=_END_SECONDS):
            fail("ranks still run without their launcher", job)
    else:
        rank, pid = rng.choice(list(workers.items()))
        send(pid, signal.SIGKILL)
        code = job.end(within_seconds=_END_SECONDS)
        named = [line for line in job.lines if f"rank {rank}" in line]
        if code == 0 or not named:
            fail(f"rank {rank} was killed, exit code {code}, but no line names it", job)
        if orphans := job.orphans():
            fail(f"processes {orphans} are left", job)
        print(f"  {named[-1]}")
    tally.max_end_seconds = max(tally.max_end_seconds, time.monotonic() - killed)


if __name__ == "__main__":
    typer.run(main)
