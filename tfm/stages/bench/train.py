"""tfm bench train: training speed on this machine, and the fraction of its peak FLOP/s used."""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tfm.backends.selection import verified_compute
from tfm.config import RunConfig, run_table
from tfm.data.dataset import Rows
from tfm.data.synthetic.token_dataset import write_token_dataset
from tfm.device.clock import DeviceClock
from tfm.device.compute import Compute
from tfm.device.threads import set_num_threads
from tfm.distributed.watchdog import Watchdog
from tfm.reporting import Progress, say
from tfm.stages.bench import measurement
from tfm.training.data import TrainingData, open_data
from tfm.training.loop import TrainingRun
from tfm.training.progress import PendingStep, StepReport
from tfm.training.trainer import StepBatch, Trainer
from tfm.world import World

# With this many pairs, those of a length bucket are as close in length as in a large corpus.
_NUM_SYNTHETIC_PAIRS = 200_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time."""

    steps: int  # per round
    untimed_steps: int  # warm-up before the first round, and before each training loop
    rounds: int
    loop: bool  # also time the whole loop of `tfm train`


@dataclass(frozen=True, kw_only=True)
class RealShare:
    """The fraction of the computed tokens that is not padding, by side of the pairs."""

    source: float
    target: float
    both: float


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Quantiles of the wall time of a step, in seconds."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True, kw_only=True)
class LoopTime:
    """The time that some steps of the training loop took."""

    num_tokens: int  # target tokens
    seconds: float
    in_steps: float  # seconds in the steps themselves


@dataclass(frozen=True, kw_only=True)
class LoopSpeed:
    """Speed of the loop of `tfm train`, with one checkpoint per round; medians over the rounds."""

    target_tokens_per_second_by_round: list[float]
    share: float  # speed of the loop divided by that of the bare steps
    share_in_steps: float  # fraction of the loop's time in its steps, insensitive to other load

    @classmethod
    def of(cls, loops: list[LoopTime], bare_rates: list[float]) -> "LoopSpeed":
        """Compare the loops of all rounds with the target tokens per second of the bare steps."""
        rates = [loop.num_tokens / loop.seconds for loop in loops]
        return cls(
            target_tokens_per_second_by_round=rates,
            share=statistics.median(
                rate / bare_rate for rate, bare_rate in zip(rates, bare_rates, strict=True)
            ),
            share_in_steps=statistics.median(loop.in_steps / loop.seconds for loop in loops),
        )


@dataclass(frozen=True, kw_only=True)
class TrainBench(measurement.BenchResult):
    """Training speed; a value that is measured in each round is the median over the rounds."""

    data: str | None  # dataset folder; None for synthetic pairs
    num_parameters: int
    settings: dict[str, Any]
    plan: Plan
    target_tokens_per_second: float  # EOS included, padding not
    target_tokens_per_second_by_round: list[float]
    target_tokens_per_step: float  # mean
    flops_per_second: float  # of the model, padding not included
    matrix_flops_per_second: measurement.MatrixRate  # of the device, measured in the same rounds
    mfu: float  # flops_per_second by the best rate of matrix products
    mfu_of_median: float  # flops_per_second by their median rate
    real_share: RealShare
    step_seconds: StepSeconds
    seconds_to_first_step: float  # from the start of the command to the end of its first step
    peak_memory: measurement.PeakMemory
    skipped_steps: int  # timed steps without an update: loss or gradient was not finite
    microbatches_per_step: float  # mean
    out_of_memory: int  # batches that were split further because memory ran out
    loop: LoopSpeed | None


def bench_train(data_dir: Path | None, run: RunConfig, plan: Plan, *, started: float) -> TrainBench:
    """Time training steps on preloaded batches, and optionally the training loop around them.

    Without a dataset, synthetic pairs with the lengths of WMT16 are used. Limits of the run are
    ignored. `started` is the start of the command, by `time.perf_counter`.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: The settings do not fit the dataset or device, or there are several processes.
        TrainingError: There is not enough memory.
    """
    measurement.require_single_process("train")
    limitless = replace(run.training, max_epochs=None, max_minutes=None, patience=None)
    run = replace(run, training=limitless)
    compute = verified_compute(run.training.device, run.training.precision, trains=True)
    with tempfile.TemporaryDirectory(prefix="tfm-bench-") as name:
        scratch = Path(name)
        if data_dir is None:
            before = time.perf_counter()
            write_token_dataset(scratch / "data", num_pairs=_NUM_SYNTHETIC_PAIRS)
            started += time.perf_counter() - before  # not a part of training
        data = replace(open_data(data_dir or scratch / "data", run), valid=None)
        set_num_threads(run.training.threads)
        say(f"bench train: {run.arch} on {data_dir or 'synthetic pairs'}, {compute}")
        data_name = None if data_dir is None else str(data_dir)
        return _measure(data, compute, plan, scratch, data_name=data_name, started=started)


@dataclass(frozen=True, kw_only=True)
class _Round:
    """The reports and times of the bare steps of a round."""

    reports: list[StepReport]
    seconds: list[float]

    def rate(self, name: str) -> float:
        """Return the sum of a field of the reports, per second."""
        return float(sum(getattr(report, name) for report in self.reports) / sum(self.seconds))


def _measure(
    data: TrainingData,
    compute: Compute,
    plan: Plan,
    scratch: Path,
    *,
    data_name: str | None,
    started: float,
) -> TrainBench:
    """Make the untimed steps, then time all rounds: bare steps, matrix products, training loop."""
    measurement.reset_peak_memory(compute.device)
    (scratch / "bare").mkdir()
    # The trainer of `tfm train`, with all its optimizations.
    trainer = TrainingRun(scratch / "bare", data, compute).trainer
    batches = trainer.batches()
    trainer.step(next(batches))
    measurement.synchronize(compute.device)
    seconds_to_first_step = time.perf_counter() - started
    for batch in islice(batches, plan.untimed_steps - 1):
        trainer.step(batch)
    timed = [(batch.epoch, batch.rows) for batch in islice(batches, plan.steps)]
    rounds, loops = list[_Round](), list[LoopTime]()
    rates_of_products = list[float]()
    for number in range(1, plan.rounds + 1):
        name = f"round {number} of {plan.rounds}"
        rounds.append(_time_steps(trainer, timed, compute.device, name))
        if number == 1:
            memory = measurement.peak_memory(compute.device)  # before matrix products use memory
        rates_of_products += measurement.matrix_rates(compute.device, compute.dtype)
        if plan.loop:
            run_dir, untimed = scratch / f"loop-{number}", plan.untimed_steps
            loops.append(time_loop(run_dir, data, compute, steps=plan.steps, untimed_steps=untimed))
    reports = [report for each in rounds for report in each.reports]
    rates = [each.rate("num_tokens") for each in rounds]
    flops_per_second = statistics.median(each.rate("flops") for each in rounds)
    matrix_rate = measurement.MatrixRate.of(compute.device, rates_of_products)
    seconds = [value for each in rounds for value in each.seconds]
    built = [trainer.build(rows) for _, rows in timed]
    p10, median, p90 = map(float, np.quantile(seconds, [0.1, 0.5, 0.9]))
    return TrainBench(
        **measurement.environment(compute),
        data=data_name,
        num_parameters=sum(each.numel() for each in trainer.model.parameters()),
        settings=run_table(data.info.run),
        plan=plan,
        target_tokens_per_second=statistics.median(rates),
        target_tokens_per_second_by_round=rates,
        target_tokens_per_step=sum(each.num_tokens for each in reports) / len(reports),
        flops_per_second=flops_per_second,
        matrix_flops_per_second=matrix_rate,
        mfu=flops_per_second / matrix_rate.best,
        mfu_of_median=flops_per_second / matrix_rate.median,
        real_share=_real_share(built, trainer.model.packs),
        step_seconds=StepSeconds(median=median, p10=p10, p90=p90),
        seconds_to_first_step=seconds_to_first_step,
        peak_memory=memory,
        skipped_steps=sum(each.skipped for each in reports),
        microbatches_per_step=sum(len(each.microbatches) for each in built) / len(built),
        out_of_memory=trainer.out_of_memory,
        loop=LoopSpeed.of(loops, rates) if plan.loop else None,
    )


def _time_steps(
    trainer: Trainer, batches: list[tuple[int, Rows]], device: torch.device, name: str
) -> _Round:
    """Time the steps of batches, given as epoch and rows."""
    clock, steps = DeviceClock(device), list[PendingStep]()
    with Progress(f"bench train, {name}", total=len(batches), unit="steps") as bar:
        measurement.synchronize(device)
        clock.mark()
        for batch in trainer.built(batches):
            step, _ = trainer.step(batch)
            clock.mark()
            bar.update()
            if step is not None:  # always: no control flag stops this run
                steps.append(step)
    timed = _Round(reports=[step.report() for step in steps], seconds=clock.seconds())
    say(f"bench train: {name}: {timed.rate('num_tokens'):,.0f} target tokens/s")
    return timed


def _real_share(batches: Sequence[StepBatch], packs: bool) -> RealShare:
    """Compute the fraction of tokens that is not padding, for a model that packs or pads."""
    real, computed = np.zeros(2), np.zeros(2)
    for batch in batches:
        for _, microbatch in batch.own:
            for side, packing in enumerate((microbatch.sources, microbatch.targets)):
                padded = len(packing.lengths) * packing.longest
                real[side] += packing.num_tokens
                computed[side] += packing.num_rows if packs else padded
    source, target = map(float, real / computed)
    return RealShare(source=source, target=target, both=float(real.sum() / computed.sum()))


def time_loop(
    run_dir: Path, data: TrainingData, compute: Compute, *, steps: int, untimed_steps: int
) -> LoopTime:
    """Train a new model as `tfm train` does, and read the times from its metrics.jsonl.

    A checkpoint is saved in the middle of the timed steps; there must be an untimed step.
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
