"""Time the whole loop of tfm train: batches, metrics, progress bar and one checkpoint."""

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
    """The time that some steps of the training loop took."""

    num_tokens: int  # target tokens
    seconds: float
    in_steps: float  # seconds in the steps themselves


def time_loop(
    run_dir: Path, data: TrainingData, compute: Compute, *, steps: int, untimed_steps: int
) -> LoopTime:
    """Train a new model as `tfm train` does, and read the times from its metrics.jsonl.

    A checkpoint is saved in the middle of the timed steps. If the data has a validation split,
    validation is timed as well. There must be at least 1 untimed step.
    """
    run = data.info.run
    # A line of metrics is written at the first and the last timed step, and between them about as
    # often as in the run.
    common = math.gcd(untimed_steps, steps)
    log_steps = max(n for n in range(1, min(run.training.log_steps, common) + 1) if common % n == 0)
    settings = replace(
        run.training,
        max_steps=untimed_steps + steps,
        checkpoint_steps=untimed_steps + steps // 2,
        log_steps=log_steps,
    )
    info = replace(data.info, run=replace(run, training=settings))
    run_dir.mkdir()
    with Watchdog(World(), None, timeout_seconds=60 * settings.stall_minutes) as watchdog:
        TrainingRun(run_dir, replace(data, info=info), compute, heartbeat=watchdog.heartbeat).loop()
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    timed = [line for line in lines if line["kind"] == "train" and line["step"] >= untimed_steps]
    return LoopTime(
        num_tokens=timed[-1]["tokens"] - timed[0]["tokens"],
        seconds=60 * (timed[-1]["minutes"] - timed[0]["minutes"]),
        in_steps=sum(
            (line["tokens"] - before["tokens"]) / line["target_tokens_per_second"]
            for before, line in pairwise(timed)
        ),
    )
