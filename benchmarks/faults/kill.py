"""A training killed by SIGKILL again and again ends with the weights of one that never was.

Trains without a disturbance; then trains the same in another folder, is killed at random moments,
a third of them while a checkpoint is being written, and starts the same command again each time.
The weights at the end must be equal byte for byte, all losses too, and no kill may cost more than
the steps since the last checkpoint.

    python benchmarks/faults/kill.py data/multi30k-en-de --kills 30
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim group
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim rank --kills 10
    python benchmarks/faults/kill.py data/multi30k-en-de --processes 2 --victim launcher
    python benchmarks/faults/kill.py data/multi30k-en-de -- --background-saving

Where the victim is one rank, the launcher has to end by itself, name that rank and leave no
process behind. Where it is the launcher, the ranks have to end by themselves. Linux only.
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
    """What the kills came to."""

    kills: int = 0
    in_saving: int = 0
    steps_lost: int = 0
    most_lost: int = 0
    longest_end: float = 0.0

    def __str__(self) -> str:
        longest = f", at most {self.longest_end:.1f} s until all had ended" * (self.longest_end > 0)
        return (
            f"{self.kills} kills, {self.in_saving} of them while saving; {self.steps_lost} steps "
            f"lost in all, at most {self.most_lost} by one kill{longest}"
        )


def main(
    data: Data,
    options: Options = None,
    kills: Annotated[int, typer.Option(help="Kill so many times.", min=1)] = 30,
    victim: Annotated[Victim, typer.Option(help="Whom to kill.")] = "group",
    processes: Annotated[int, typer.Option(help="As of tfm train.", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 200,
    checkpoint_steps: Annotated[int, typer.Option(help="As of tfm train.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 1,
    out: Out = Path("runs/faults/kill"),
) -> None:
    """Kill a training until it is done."""
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
    print(f"undisturbed: {steps} steps in {job.seconds:.1f} s, {startup_seconds:.1f} s to begin")
    window = _window_seconds(job.seconds - startup_seconds, startup_seconds, kills)
    # A kill may cost what was not saved; saving in the background may lag one checkpoint behind.
    most_steps = checkpoint_steps * (2 if "--background-saving" in shared else 1)
    tally = _kill_until_done(
        disturbed, victim, kills, startup_seconds + window, most_steps, random.Random(seed)
    )
    if tally.kills < kills:
        print(f"done after {tally.kills} kills already: give more --steps")
    check_equal(disturbed, undisturbed)
    print(f"{tally}; final weights and all losses equal")


def _window_seconds(training: float, startup: float, kills: int) -> float:
    """How much longer than its start a life may be, so that so many lives are needed.

    A life that ends at any moment of its start and a window w trains w² / 2(start + w) on average;
    all together, with a margin, are to come to the whole training.
    """
    share = training / (2.5 * kills)
    return share + math.sqrt(share**2 + 2 * share * startup)


def _kill_until_done(
    training: Training,
    victim: Victim,
    kills: int,
    longest_life: float,
    most_steps: int,
    rng: random.Random,
) -> Tally:
    tally = Tally()
    while tally.kills < kills:
        leftovers = set(training.partial_checkpoints())
        job = training.start()
        if not _wait_for_moment(job, training, rng.uniform(0, longest_life), rng):
            if job.end() != 0:
                fail("it ended by itself", job)
            return tally
        _kill(job, victim, tally, rng)
        tally.kills += 1
        tally.in_saving += bool(set(training.partial_checkpoints()) - leftovers)
        for checkpoint in training.checkpoints()[-1:]:
            check_whole(checkpoint)
        lost = max(0, training.logged_step() - training.saved_step())
        tally.steps_lost += lost
        tally.most_lost = max(tally.most_lost, lost)
        if lost > most_steps:
            fail(f"{lost} steps lost by one kill")
        print(f"kill {tally.kills} at {job.seconds:.1f} s: step {training.saved_step()} stands")
    finish(training)
    return tally


def _wait_for_moment(job: Job, training: Training, seconds: float, rng: random.Random) -> bool:
    """Wait for the moment to kill, a third of them in a saving; whether it has come."""
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
    if victim == "group" or len(workers) < 2:  # the ranks do not stand yet
        job.kill()
        return
    if victim == "launcher":
        send(job.process.pid, signal.SIGKILL)
        job.process.wait()
        if job.orphans(within_seconds=_END_SECONDS):
            fail("ranks live on without their launcher", job)
    else:
        rank, pid = rng.choice(list(workers.items()))
        send(pid, signal.SIGKILL)
        code = job.end(within_seconds=_END_SECONDS)
        named = [line for line in job.lines if f"rank {rank}" in line]
        if code == 0 or not named:
            fail(f"rank {rank} was killed, exit code {code}, but nothing names it", job)
        if orphans := job.orphans():
            fail(f"processes {orphans} are left", job)
        print(f"  {named[-1]}")
    tally.longest_end = max(tally.longest_end, time.monotonic() - killed)


if __name__ == "__main__":
    typer.run(main)
