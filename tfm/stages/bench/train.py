"""tfm bench train: how fast this machine trains a model, and what of it the device could do."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tfm import __version__
from tfm.backends.selection import verified_compute
from tfm.config import RunConfig, run_table
from tfm.data.batching import Batcher
from tfm.data.dataset import Rows
from tfm.data.synthetic.token_dataset import write_token_dataset
from tfm.device.compute import Compute
from tfm.device.threads import set_num_threads
from tfm.errors import UsageError
from tfm.reporting import Progress, say
from tfm.stages.bench.measurement import (
    MatrixRate,
    PeakMemory,
    StepClock,
    device_name,
    forget_peak_memory,
    matrix_rates,
    peak_memory,
    wait_for,
)
from tfm.stages.bench.train_loop import LoopTime, time_loop
from tfm.stages.training_data import TrainingData, open_data
from tfm.stages.training_run import TrainingRun
from tfm.training.progress import StepReport
from tfm.world import World

# Enough that pairs of a bucket are as alike in length as in a large corpus.
_NUM_MADE_UP_PAIRS = 200_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time.

    Attributes:
        steps: Steps of a round.
        untimed_steps: Steps before the first round, and before each of the loop.
        rounds: How often all that is compared is timed, in turn.
        loop: Whether to time the whole loop of `tfm train` beside bare steps.
    """

    steps: int
    untimed_steps: int
    rounds: int
    loop: bool


@dataclass(frozen=True, kw_only=True)
class RealShare:
    """The share of the computed tokens that are no padding, by side of the pairs."""

    source: float
    target: float
    both: float


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """What a step took: the median of all steps, and between what four fifths of them lie."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "StepSeconds":
        """What the times of some steps come to."""
        p10, median, p90 = map(float, np.quantile(seconds, [0.1, 0.5, 0.9]))
        return cls(median=median, p10=p10, p90=p90)


@dataclass(frozen=True, kw_only=True)
class LoopSpeed:
    """The loop of `tfm train`, with a checkpoint a round, beside the bare steps of the same round.

    Attributes:
        target_tokens_per_second_by_round: Of the loop.
        share: The median over rounds of that by the rate of bare steps.
        share_in_steps: The median over rounds of the share of its time that the loop spends in its
            own steps; other work on the machine, which comes and goes, hardly changes it.
    """

    target_tokens_per_second_by_round: list[float]
    share: float
    share_in_steps: float

    @classmethod
    def of(cls, loops: list[LoopTime], bare: list[float]) -> "LoopSpeed":
        """What some rounds come to.

        Args:
            loops: The loop, by round.
            bare: Target tokens a second of bare steps, by round.
        """
        rates = [loop.num_tokens / loop.seconds for loop in loops]
        return cls(
            target_tokens_per_second_by_round=rates,
            share=statistics.median(rate / other for rate, other in zip(rates, bare, strict=True)),
            share_in_steps=statistics.median(loop.in_steps / loop.seconds for loop in loops),
        )


@dataclass(frozen=True, kw_only=True)
class TrainBench:
    """How fast a model trains; of figures by round, the median.

    Attributes:
        version: Of tfm.
        torch: Version of torch.
        device: Name of the device.
        compute: Device and arithmetic, in words.
        num_threads: Threads of torch on the CPU.
        data: The dataset folder; None if pairs were made up.
        num_parameters: Of the model.
        settings: All settings.
        plan: What was timed.
        target_tokens_per_second: Real ones, EOS included.
        target_tokens_per_second_by_round: The same for each round.
        target_tokens_per_step: Their mean number.
        flops_per_second: Operations of the model a second, of real tokens only.
        matrix_flops_per_second: What the device reached in matrix products beside that.
        mfu: The share of the best of those rates that the model's operations reach.
        mfu_of_median: The share of their median.
        real_share: How much of what was computed is no padding.
        step_seconds: Wall time of a step.
        seconds_to_first_step: From the start of the command to the end of its first step.
        peak_memory: Bytes.
        skipped_steps: Timed steps that changed nothing, as loss or gradient was not finite.
        out_of_memory: Batches that were split further, as memory ran out.
        loop: The loop of `tfm train`, if it was timed.
    """

    version: str
    torch: str
    device: str
    compute: str
    num_threads: int
    data: str | None
    num_parameters: int
    settings: dict[str, Any]
    plan: Plan
    target_tokens_per_second: float
    target_tokens_per_second_by_round: list[float]
    target_tokens_per_step: float
    flops_per_second: float
    matrix_flops_per_second: MatrixRate
    mfu: float
    mfu_of_median: float
    real_share: RealShare
    step_seconds: StepSeconds
    seconds_to_first_step: float
    peak_memory: PeakMemory
    skipped_steps: int
    out_of_memory: int
    loop: LoopSpeed | None

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def bench_train(data_dir: Path | None, run: RunConfig, plan: Plan, *, started: float) -> TrainBench:
    """Time training steps on batches that are at hand, and if asked to the loop around them.

    Args:
        data_dir: The dataset folder; None makes up pairs as long as those of WMT16 are.
        run: All settings; its limits do not count.
        plan: What to time.
        started: When the command started, by `time.perf_counter`.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: Settings do not suit dataset or device; there are several processes.
        TrainingError: Memory is too small.
    """
    world = World.from_environment()
    if world.size > 1:
        raise UsageError(
            f"tfm bench train times a single process, but {world.launcher} has started "
            f"{world.size}: start it without"
        )
    run = _without_limits(run)
    compute = verified_compute(run.training.device, run.training.precision, trains=True)
    with tempfile.TemporaryDirectory(prefix="tfm-bench-") as scratch:
        made_up = Path(scratch) / "data"
        if data_dir is None:
            before = time.perf_counter()
            write_token_dataset(made_up, num_pairs=_NUM_MADE_UP_PAIRS)
            started += time.perf_counter() - before  # which `tfm train` need not do
        data = replace(open_data(data_dir or made_up, run), valid=None)
        on = "made-up pairs" if data_dir is None else data_dir
        set_num_threads(run.training.threads)
        say(f"bench train: {run.arch} on {on}, {compute}")
        bench = _Bench(data, compute, plan, scratch=Path(scratch), started=started)
        bench.measure()
        return bench.result(data_name=None if data_dir is None else str(data_dir))


def _without_limits(run: RunConfig) -> RunConfig:
    """The same run, but that nothing ends it early or needs a validation split."""
    training = replace(run.training, max_epochs=None, max_minutes=None, patience=None)
    return replace(run, training=training)


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Bare steps that were timed together."""

    reports: list[StepReport]
    seconds: list[float]

    def rate(self, name: str) -> float:
        """The sum of a figure of its reports, a second."""
        return float(sum(getattr(each, name) for each in self.reports) / sum(self.seconds))


class _Bench:
    """A training that is timed.

    Args:
        data: What to train on, and with what settings.
        compute: Device and arithmetic.
        plan: What to time.
        scratch: A folder for what is written.
        started: When the command started.
    """

    def __init__(
        self,
        data: TrainingData,
        compute: Compute,
        plan: Plan,
        *,
        scratch: Path,
        started: float,
    ) -> None:
        self._data = data
        self._compute = compute
        self._plan = plan
        self._scratch = scratch
        forget_peak_memory(compute.device)
        (scratch / "bare").mkdir()
        # The trainer that `tfm train` would have, whatever is done to make it fast.
        self._trainer = TrainingRun(scratch / "bare", data, compute).trainer
        batches = self._trainer.batches()
        self._trainer.step(next(batches))
        wait_for(compute.device)
        self._seconds_to_first_step = time.perf_counter() - started
        for rows in islice(batches, plan.untimed_steps - 1):
            self._trainer.step(rows)
        self._batches = list(islice(batches, plan.steps))
        self._rounds: list[_Round] = []
        self._matrix_rates: list[float] = []
        self._loops: list[LoopTime] = []
        self._memory = peak_memory(compute.device)

    def measure(self) -> None:
        """Time all that there is to time, in turn."""
        plan, compute = self._plan, self._compute
        for number in range(1, plan.rounds + 1):
            self._rounds.append(self._bare_steps(f"round {number} of {plan.rounds}"))
            if number == 1:
                self._memory = peak_memory(compute.device)  # of training alone
            self._matrix_rates += matrix_rates(compute.device, compute.dtype)
            if plan.loop:
                self._loops.append(
                    time_loop(
                        self._scratch / f"loop-{number}",
                        self._data,
                        compute,
                        steps=plan.steps,
                        untimed_steps=plan.untimed_steps,
                    )
                )

    def result(self, *, data_name: str | None) -> TrainBench:
        """What was measured.

        Args:
            data_name: What the dataset is called.
        """
        reports = [report for each in self._rounds for report in each.reports]
        rates = [each.rate("num_tokens") for each in self._rounds]
        flops_per_second = statistics.median(each.rate("flops") for each in self._rounds)
        matrix_rate = MatrixRate.of(self._compute.device, self._matrix_rates)
        return TrainBench(
            version=__version__,
            torch=torch.__version__,
            device=device_name(self._compute.device),
            compute=str(self._compute),
            num_threads=torch.get_num_threads(),
            data=data_name,
            num_parameters=sum(each.numel() for each in self._trainer.parameters),
            settings=run_table(self._data.info.run),
            plan=self._plan,
            target_tokens_per_second=statistics.median(rates),
            target_tokens_per_second_by_round=rates,
            target_tokens_per_step=sum(each.num_tokens for each in reports) / len(reports),
            flops_per_second=flops_per_second,
            matrix_flops_per_second=matrix_rate,
            mfu=flops_per_second / matrix_rate.best,
            mfu_of_median=flops_per_second / matrix_rate.median,
            real_share=_real_share(
                self._trainer.batcher,
                self._batches,
                num_dropout_shards=self._data.info.run.batching.num_dropout_shards,
                packs=self._trainer.model.packs,
            ),
            step_seconds=StepSeconds.of([value for each in self._rounds for value in each.seconds]),
            seconds_to_first_step=self._seconds_to_first_step,
            peak_memory=self._memory,
            skipped_steps=sum(each.skipped for each in reports),
            out_of_memory=self._trainer.out_of_memory,
            loop=LoopSpeed.of(self._loops, rates) if self._plan.loop else None,
        )

    def _bare_steps(self, name: str) -> _Round:
        """Time steps on batches that are at hand."""
        device = self._compute.device
        clock, reports = StepClock(device), list[StepReport]()
        with Progress(f"bench train, {name}", total=len(self._batches), unit="steps") as bar:
            wait_for(device)
            clock.mark()
            for rows in self._batches:
                report, _ = self._trainer.step(rows)
                clock.mark()
                bar.update()
                if report is not None:  # nobody asks it to stop
                    reports.append(report)
        timed = _Round(reports=reports, seconds=clock.seconds())
        say(f"bench train: {name}: {timed.rate('num_tokens'):,.0f} target tokens/s")
        return timed


def _real_share(
    batcher: Batcher, batches: Sequence[Rows], *, num_dropout_shards: int, packs: bool
) -> RealShare:
    """How much of what some batches have a model compute is no padding.

    Args:
        batcher: Of the batches.
        batches: Their rows.
        num_dropout_shards: The number of microbatches of each is a multiple of it.
        packs: Whether the model packs the sentences of a microbatch on one axis, or pads them.
    """
    real, computed = np.zeros(2), np.zeros(2)
    for rows in batches:
        for microbatch in batcher.split(rows, multiple_of=num_dropout_shards):
            batch = batcher.batch(microbatch)
            for side, packing in enumerate((batch.sources, batch.targets)):
                padded = len(packing.lengths) * packing.longest
                real[side] += packing.num_tokens
                computed[side] += packing.num_rows if packs else padded
    source, target = map(float, real / computed)
    return RealShare(source=source, target=target, both=float(real.sum() / computed.sum()))
