"""The cost of a run, before it trains: tfm train --dry-run, and a warning if it is very long."""

import math
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import harmonic_mean

import torch

from tfm.backends.selection import verified_compute
from tfm.backends.training_compiled import AttentionKernel, CompiledTraining
from tfm.config import RunConfig
from tfm.dataset.batching import Batcher
from tfm.folders.model_folder import ModelFolder
from tfm.folders.saving import NUM_STATES_KEPT
from tfm.machine.compute import (
    DTYPES,
    Compute,
    ComputeThreads,
    device_memory_bytes,
    measure_product_flops,
    oversubscription,
)
from tfm.machine.cpu import num_cores
from tfm.machine.world import World
from tfm.model.build import empty_model
from tfm.model.cost import Cost
from tfm.reporting import Result, format_duration
from tfm.table import Table
from tfm.training.accumulation import max_microbatch_tokens
from tfm.training.data import (
    TrainingData,
    check_start,
    cost_of,
    first_model,
    num_first_shards,
    open_data,
    shortage,
)
from tfm.training.trainer import Trainer

_MAX_SECONDS, _MAX_EPOCHS = 86_400, 1000  # warn about a longer run
# A training step takes about this many times as long as its matrix products.
_TIME_PER_PRODUCT_TIME = 2
# Steps that are measured on a CPU: seconds of all, their least number, and target tokens of each.
# If their mean takes this many times as long as the fastest, the machine is busy.
_PROBE_SECONDS, _MIN_PROBES, _PROBE_TOKENS, _BUSY = 5.0, 3, 1_000, 1.3
_WEIGHT_BYTES, _STATE_BYTES = 4, 8  # per parameter, in a checkpoint
_MAX_PLANNED = 10_000  # batches to divide into microbatches
_MAX_MEASURED_WIDTH = 4096  # products of wider matrices are not faster


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """About how long a run takes, and how much disk its checkpoints take."""

    num_steps: int  # at most: patience may end the run
    epochs: float
    flops_per_step: float  # mean over an epoch
    seconds_per_step: float  # NaN if there is no device to measure
    slowdown: float = 1.0  # by other programs, while it was measured
    checkpoint_bytes: float

    @property
    def seconds(self) -> float:
        """The seconds of all steps."""
        return self.num_steps * self.seconds_per_step

    @property
    def shown_time(self) -> str:
        """The time of a step and of all, in words."""
        if math.isnan(self.seconds_per_step):
            return "unknown: run the same command on the machine with the GPUs, to measure one"
        per_step, in_all = format_duration(self.seconds_per_step), format_duration(self.seconds)
        slowed = format_duration(self.seconds * self.slowdown)
        range_ = in_all if slowed == in_all else f"{in_all} to {slowed}"
        busy = ", beside other programs" if self.slowdown > _BUSY else ""
        return f"{per_step} per step, {range_} for {self.num_steps:,} steps{busy}"

    @property
    def warning(self) -> str | None:
        """One line that says why the run is too long, and what to set; None if it is not."""
        problems = []
        if self.seconds > _MAX_SECONDS:
            problems.append(f"take about {format_duration(self.seconds)}")
        if self.epochs > _MAX_EPOCHS:
            problems.append(f"pass over the data about {self.epochs:,.0f} times")
        if not problems:
            return None
        return (
            f"warning: training would {' and '.join(problems)} ({self.shown_time}, "
            f"{self.checkpoint_bytes / 1e9:.2g} GB of checkpoints): set a smaller --arch or "
            "--max-steps"
        )


def estimate_run(
    data: TrainingData,
    batcher: Batcher,
    cost: Cost,
    compute: Compute,
    *,
    num_processes: int,
    num_local: int,
    measured: tuple[float, float] | None = None,
) -> Estimate:
    """Estimate time and disk space of a new run; measure products if this machine has the device.

    Without the device, the time is NaN. The `num_local` processes on the CPU of each machine share
    its cores. `measured` are the FLOP/s of the fastest training step and their mean, if known.
    """
    limits, steps_per_epoch = data.info.run.training, batcher.num_batches()
    lengths = batcher.lengths(batcher.sample())
    flops = cost.training_flops(*lengths) / int(lengths[1].sum())  # of a target token
    flops *= batcher.num_tokens / steps_per_epoch
    if measured is None and _is_here(compute.device):
        width = min(data.info.run.model.d_model, _MAX_MEASURED_WIDTH)
        products = measure_product_flops(compute, d_in=width, d_out=4 * width)
        measured = (products / _TIME_PER_PRODUCT_TIME,) * 2
    rate, mean_rate = measured or (math.nan, math.nan)
    sharing = 1.0
    if compute.device.type == "cpu":
        sharing = min(1, num_cores() / torch.get_num_threads() / num_local)
    seconds = flops / (rate * num_processes * sharing)
    num_steps = data.info.run.last_step(steps_per_epoch)
    # A NaN in second place is neither smaller nor larger.
    num_steps = int(min(num_steps, 60 * (limits.max_minutes or math.inf) / seconds))
    interval = limits.checkpoint_steps or max(1.0, 60 * limits.checkpoint_minutes / seconds)
    num_saved = math.ceil(num_steps / interval)
    # A new checkpoint is written before an old one is removed.
    num_weights = min(num_saved, limits.keep_last + limits.keep_best + 1)
    num_states = min(num_saved, NUM_STATES_KEPT + 1)
    averages = data.info.run.optimizer.ema is not None  # then the state has the trained weights
    state_bytes = _STATE_BYTES + (_WEIGHT_BYTES if averages else 0)
    return Estimate(
        num_steps=num_steps,
        epochs=num_steps / steps_per_epoch,
        flops_per_step=flops,
        seconds_per_step=seconds,
        slowdown=rate / mean_rate,
        checkpoint_bytes=cost.num_parameters
        * (_WEIGHT_BYTES * num_weights + state_bytes * num_states),
    )


def _measure_steps(
    data: TrainingData, compute: Compute, cost: Cost, threads: ComputeThreads
) -> tuple[float, float]:
    """Measure the FLOP/s of short training steps on a CPU: the fastest one, and their mean.

    The threads adapt to other programs first; the second half of the steps counts.
    """
    run = replace(data.info.run, training=replace(data.info.run.training, shard=False))
    model = first_model(data, None)
    trainer = Trainer(model, data.train, run, compute, cost=cost, threads=threads)
    indices = next(trainer.batches()).indices
    pairs = indices[: math.ceil(len(indices) * min(1, _PROBE_TOKENS / run.batching.batch_tokens))]
    flops, rates, end = cost.training_flops(*trainer.batcher.lengths(pairs)), [0.0], 0.0
    started = time.perf_counter()
    while len(rates) < _MIN_PROBES or end - started < _PROBE_SECONDS:
        begun = time.perf_counter()
        trainer.step(trainer.build(pairs))
        end = time.perf_counter()
        rates.append(flops / (end - begun))
    counted = rates[(len(rates) + 1) // 2 :]
    return max(counted), harmonic_mean(counted)


@dataclass(frozen=True, kw_only=True)
class Forecast(Result):
    """The cost of a run; numbers per step are means over an epoch."""

    data: TrainingData
    device: str
    cost: Cost
    steps_per_epoch: int
    tokens_per_step: float  # target tokens
    num_processes: int
    microbatches_per_step: float  # per process
    microbatch_tokens: int  # at most, on each side
    estimate: Estimate
    warnings: list[str]  # why the run is too long or too large

    def summary(self) -> list[str]:
        """Return the warnings."""
        return self.warnings

    def lines(self, _: int | None) -> list[Table]:
        """Return a table of all costs."""
        return [Table([*self.rows().items()])]

    def rows(self) -> dict[str, str]:
        """Return names and values of a table."""
        cost, estimate = self.cost, self.estimate
        source, target = self.data.info.vocab_sizes
        several = f"each of {self.num_processes} processes"
        is_sharded = self.data.info.run.training.shard
        num_shards = self.num_processes if is_sharded else 1
        gib = cost.average_bytes / num_shards / 2**30
        gathered = (
            f"; {cost.gathered_bytes / 2**30:.2f} GiB on the machine of rank 0, to save"
            if is_sharded
            else ""
        )
        average = f"{gib:.2f} GiB for the moving average of weights, " if gib else ""
        return {f"parameters, {part}": f"{count:,}" for part, count in cost.parameters.items()} | {
            "parameters": f"{cost.num_parameters:,} ({cost.num_parameters / 1e6:.1f} M)",
            "vocabulary": f"{source:,} source and {target:,} target pieces",
            "dataset": f"{self.data.data_dir}, {len(self.data.train):,} training pairs",
            "device": self.device,
            "global batch": f"{self.tokens_per_step:,.0f} target tokens per step, in "
            f"{self.microbatches_per_step:.1f} microbatches on "
            f"{'one device' if self.num_processes == 1 else several}",
            "steps": f"{estimate.num_steps:,}; "
            f"{'about ' * (self.data.augmentation is not None)}{self.steps_per_epoch:,} per epoch, "
            f"{estimate.epochs:.1f} epochs",
            "training FLOPs": f"{estimate.flops_per_step:.3g} per step, "
            f"{estimate.flops_per_step * estimate.num_steps:.3g} in total",
            "memory, about": f"{cost.state_bytes / num_shards / 2**30:.2f} GiB for weights and "
            f"optimizer, {average}{self.microbatch_tokens * cost.token_bytes / 2**30:.2f} GiB for "
            f"a microbatch{gathered}",
            "time, about": estimate.shown_time,
            "disk, about": f"{estimate.checkpoint_bytes / 1e9:.2g} GB for checkpoints",
        }


def forecast(data_dir: Path, run: RunConfig, *, num_processes: int = 1) -> Forecast:
    """Compute the cost of a run in a number of processes on one machine.

    The GPUs may belong to another machine: then the estimate of time is NaN.
    """
    data, training = open_data(data_dir, run, num_processes=num_processes), run.training
    data.train.verify(range(num_first_shards(data.train)))
    if run.from_model is not None:
        check_start(ModelFolder(Path(run.from_model)), data)
    compute, device, warnings = _planned_compute(run, num_processes)
    threads = ComputeThreads(training.threads, num_processes=num_processes)
    cost = cost_of(data)
    compiles = compute.device.type == "cuda" and training.kernels == "auto" and training.compile
    kernel: AttentionKernel = "efficient" if compute.dtype == torch.float32 else "flash"
    model = empty_model(run.model, data.info.vocab_sizes)
    packed = compiles and CompiledTraining(kernel).packs(model)
    max_tokens = max_microbatch_tokens(
        run,
        compute.device,
        cost,
        num_processes=num_processes,
        packed=packed,
        memory_bytes=device_memory_bytes(compute.device) if _is_here(compute.device) else math.inf,
    )
    stored = Batcher(data.train, run.batching, seed=training.seed, packed=packed)
    batcher = Batcher(data.train, run.batching, seed=training.seed, augmentation=data.augmentation)
    num_shards = math.lcm(run.batching.num_dropout_shards, num_processes)
    num_planned = min(stored.num_batches(), _MAX_PLANNED)
    num_microbatches = sum(
        len(stored.split(indices, max_tokens=max_tokens, multiple_of=num_shards))
        for _, indices in islice(stored.batches(), num_planned)
    )
    world = World(size=num_processes, local_size=num_processes)
    problem = shortage(data, cost, compute.device, world) if _is_here(compute.device) else None
    measures_steps = compute.device.type == "cpu" and problem is None
    estimate = estimate_run(
        data,
        batcher,
        cost,
        compute,
        num_processes=num_processes,
        num_local=num_processes,
        measured=_measure_steps(data, compute, cost, threads) if measures_steps else None,
    )
    warnings += filter(None, [estimate.warning, problem and f"warning: {problem}"])
    return Forecast(
        data=data,
        device=device or str(compute),
        cost=cost,
        steps_per_epoch=batcher.num_batches(),
        tokens_per_step=batcher.num_tokens / batcher.num_batches(),
        num_processes=num_processes,
        microbatches_per_step=num_microbatches / num_planned / num_processes,
        microbatch_tokens=min(max_tokens, run.batching.batch_tokens // num_processes),
        estimate=estimate,
        warnings=warnings,
    )


def _planned_compute(run: RunConfig, num_processes: int) -> tuple[Compute, str, list[str]]:
    """Return device and arithmetic, the device in words if this machine lacks it, and warnings."""
    training, device, warnings = run.training, "", list[str]()
    num_gpus = torch.cuda.device_count() if training.device == "cuda" else num_processes
    if num_gpus < num_processes:
        device = (
            f"{num_processes} GPU{'s' * (num_processes > 1)}, of which this machine has {num_gpus}"
        )
        warnings.append(f"warning: this is an estimate for {device}")
    if not num_gpus:
        precision = "bf16" if training.precision == "auto" else training.precision
        compute = Compute(torch.device("cuda"), DTYPES[precision])
        return compute, f"{device}; in {precision}", warnings
    compute = verified_compute(
        training.device, training.precision, trains=True, notify=warnings.append
    )
    too_many = oversubscription(compute.device, training.threads, num_processes=num_processes)
    return compute, device, warnings + ([] if too_many is None else [too_many])


def _is_here(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.is_available()
