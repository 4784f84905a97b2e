"""The whole loop of tfm train, timed: batches, figures, bar, and one checkpoint."""

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tfm.device.compute import Compute
from tfm.distributed.watchdog import Watchdog
from tfm.stages.training_data import TrainingData
from tfm.stages.training_run import TrainingRun
from tfm.world import World


@dataclass(frozen=True, kw_only=True)
class LoopTime:
    """What some steps of a loop took.

    Attributes:
        num_tokens: Their target tokens.
        seconds: All of the time.
        in_steps: What of it was the steps' own.
    """

    num_tokens: int
    seconds: float
    in_steps: float


def time_loop(
    run_dir: Path, data: TrainingData, compute: Compute, *, steps: int, untimed_steps: int
) -> LoopTime:
    """Train a fresh model as `tfm train` does; what it writes tells the time.

    Args:
        run_dir: A run folder, which is made.
        data: What to train on; a validation split would be timed, too.
        compute: Device and arithmetic.
        steps: Steps to time; in their middle, a checkpoint is written.
        untimed_steps: Steps before those, at least one.
    """
    run = data.info.run
    settings = replace(
        run.training,
        max_steps=untimed_steps + steps,
        checkpoint_steps=untimed_steps + steps // 2,
        log_steps=_log_steps(run.training.log_steps, untimed_steps, steps),
    )
    info = replace(data.info, run=replace(run, training=settings))
    run_dir.mkdir()
    with Watchdog(World(), None, timeout_seconds=60 * settings.stall_minutes) as watchdog:
        TrainingRun(run_dir, replace(data, info=info), compute, heartbeat=watchdog.heartbeat).loop()
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    timed = [each for each in lines if each["kind"] == "train" and each["step"] >= untimed_steps]
    return LoopTime(
        num_tokens=timed[-1]["tokens"] - timed[0]["tokens"],
        seconds=60 * (timed[-1]["minutes"] - timed[0]["minutes"]),
        in_steps=sum(
            (line["tokens"] - before["tokens"]) / line["target_tokens_per_second"]
            for before, line in pairwise(timed)
        ),
    )


def _log_steps(wanted: int, untimed_steps: int, steps: int) -> int:
    """Steps from line to line of the figures: about as wanted, and with one at both ends."""
    common = math.gcd(untimed_steps, steps)
    return max(each for each in range(1, min(wanted, common) + 1) if common % each == 0)
