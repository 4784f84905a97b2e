"""The cost of a run, before it trains: tfm train --dry-run, and a warning if it is very long."""

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tfm.backends.selection import verified_compute
from tfm.config import RunConfig
from tfm.data.batching import Batcher
from tfm.device.compute import Compute, measure_product_flops
from tfm.device.threads import set_num_threads
from tfm.model.cost import Cost, memory_problem, model_cost
from tfm.storage.checkpoint.run_folder import NUM_STATES_KEPT
from tfm.training.data import TrainingData, check_effects, check_start, num_first_parts, open_data
from tfm.training.trainer import max_microbatch_tokens

_MAX_DAYS, _MAX_EPOCHS = 7, 1000  # warn about a longer run
# A training step takes about this many times as long as its matrix products.
_TIME_PER_PRODUCT_TIME = 2
_WEIGHT_BYTES, _STATE_BYTES = 4, 8  # per parameter, in a checkpoint
_MAX_PLANNED = 10_000  # batches to divide into microbatches
_MAX_MEASURED_WIDTH = 4096  # products of wider matrices are not faster


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """About how long a run takes, and how much disk its checkpoints take."""

    num_steps: int  # at most: patience may end the run
    epochs: float
    flops_per_step: float  # mean over an epoch
    seconds_per_step: float
    checkpoint_bytes: float

    @property
    def hours(self) -> float:
        """The hours of all steps."""
        return self.num_steps * self.seconds_per_step / 3600

    @property
    def warning(self) -> str | None:
        """One line that says why the run is too long, and what to set; None if it is not."""
        problems = []
        if self.hours > 24 * _MAX_DAYS:
            problems.append(f"take about {self.hours / 24:,.0f} days")
        if self.epochs > _MAX_EPOCHS:
            problems.append(f"pass over the data about {self.epochs:,.0f} times")
        if not problems:
            return None
        return (
            f"warning: training would {' and '.join(problems)} ({self.num_steps:,} steps of about "
            f"{self.seconds_per_step:.3g} s, {self.checkpoint_bytes / 1e9:.2g} GB of checkpoints): "
            "set a smaller --arch or --max-steps"
        )


def estimate_run(
    data: TrainingData, batcher: Batcher, cost: Cost, compute: Compute, *, num_processes: int
) -> Estimate:
    """Estimate time and disk of a new run from a short measurement of the device."""
    limits, steps_per_epoch = data.info.run.training, batcher.num_batches()
    sample = batcher.sample()
    flops = cost.training_flops(*batcher.lengths(sample)) * len(data.train) / len(sample)
    flops /= steps_per_epoch
    width = min(data.info.run.model.d_model, _MAX_MEASURED_WIDTH)
    rate = num_processes * measure_product_flops(compute, d_in=width, d_out=4 * width)
    seconds = _TIME_PER_PRODUCT_TIME * flops / rate
    num_steps = min(limits.max_steps, (limits.max_epochs or math.inf) * steps_per_epoch)
    num_steps = int(min(num_steps, 60 * (limits.max_minutes or math.inf) / seconds))
    interval = limits.checkpoint_steps or 60 * limits.checkpoint_minutes / seconds
    num_saved = math.ceil(num_steps / interval)
    # One more is written before an old one is removed.
    num_weights = min(num_saved, limits.keep_last + limits.keep_best + 1)
    num_states = min(num_saved, NUM_STATES_KEPT + 1)
    averages = data.info.run.optimizer.ema is not None  # then the state has the trained weights
    state_bytes = _STATE_BYTES + (_WEIGHT_BYTES if averages else 0)
    return Estimate(
        num_steps=num_steps,
        epochs=num_steps / steps_per_epoch,
        flops_per_step=flops,
        seconds_per_step=seconds,
        checkpoint_bytes=cost.num_parameters
        * (_WEIGHT_BYTES * num_weights + state_bytes * num_states),
    )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The cost of a run; numbers per step are means over an epoch."""

    data: TrainingData
    compute: Compute
    cost: Cost
    steps_per_epoch: int
    tokens_per_step: float  # target tokens
    num_processes: int
    microbatches_per_step: float  # per process
    estimate: Estimate
    warnings: list[str]  # why the run is too long or too large

    def rows(self) -> dict[str, str]:
        """Return names and values of a table."""
        cost, estimate = self.cost, self.estimate
        max_steps = self.data.info.run.training.max_steps
        source, target = self.data.info.vocab_sizes
        several = f"each of {self.num_processes} devices"
        average = ""
        if cost.average_bytes:
            average = f"{cost.average_bytes / 2**30:.2f} GiB for the moving average of weights, "
        return {f"parameters, {part}": f"{count:,}" for part, count in cost.parameters.items()} | {
            "parameters": f"{cost.num_parameters:,} ({cost.num_parameters / 1e6:.1f} M)",
            "vocabulary": f"{source:,} source and {target:,} target pieces",
            "dataset": f"{self.data.data_dir}, {len(self.data.train):,} training pairs",
            "device": str(self.compute),
            "global batch": f"{self.tokens_per_step:,.0f} target tokens per step, in "
            f"{self.microbatches_per_step:.1f} microbatches on "
            f"{'one device' if self.num_processes == 1 else several}",
            "steps": f"{max_steps:,}; {self.steps_per_epoch:,} per epoch, "
            f"{max_steps / self.steps_per_epoch:.1f} epochs",
            "training FLOPs": f"{estimate.flops_per_step:.3g} per step, "
            f"{estimate.flops_per_step * max_steps:.3g} in total",
            "memory, about": f"{cost.state_bytes / 2**30:.2f} GiB for weights and optimizer, "
            f"{average}{cost.activation_bytes / 2**30:.2f} GiB for a microbatch",
            "time, about": f"{estimate.seconds_per_step:.3g} s per step, "
            f"{estimate.hours:,.1f} hours for {estimate.num_steps:,} steps",
            "disk, about": f"{estimate.checkpoint_bytes / 1e9:.2g} GB for checkpoints",
        }


def forecast(data_dir: Path, run: RunConfig, *, num_processes: int = 1) -> Forecast:
    """Compute the cost of a run on a number of processes.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: The settings do not fit the dataset or device.
    """
    check_effects(run, num_processes=num_processes)
    data, training = open_data(data_dir, run), run.training
    data.train.verify(range(num_first_parts(data.train)))
    if run.from_model is not None:
        check_start(Path(run.from_model), data)
    compute = verified_compute(training.device, training.precision, trains=True)
    set_num_threads(training.threads, num_processes=num_processes)
    source, target = data.info.vocab_sizes
    max_tokens = max_microbatch_tokens(
        run,
        compute.device,
        num_processes=num_processes,
        compiles=compute.device.type == "cuda" and training.kernels == "auto" and training.compile,
    )
    cost = model_cost(
        run.model,
        source_vocab_size=source,
        target_vocab_size=target,
        max_tokens=min(max_tokens, run.batching.batch_tokens),
        averages_weights=run.optimizer.ema is not None,
    )
    batcher = Batcher(data.train, run.batching, seed=training.seed)
    num_shards = math.lcm(run.batching.num_dropout_shards, num_processes)
    num_planned = min(batcher.num_batches(), _MAX_PLANNED)
    num_microbatches = sum(
        len(batcher.split(rows, max_tokens=max_tokens, multiple_of=num_shards))
        for _, rows in islice(batcher.batches(), num_planned)
    )
    estimate = estimate_run(data, batcher, cost, compute, num_processes=num_processes)
    num_copies = 1 / num_processes if training.shard else 1.0
    problem = memory_problem(cost, compute.device, num_copies=num_copies)
    too_large = None if problem is None else f"warning: {problem}"
    return Forecast(
        data=data,
        compute=compute,
        cost=cost,
        steps_per_epoch=batcher.num_batches(),
        tokens_per_step=batcher.num_tokens / batcher.num_batches(),
        num_processes=num_processes,
        microbatches_per_step=num_microbatches / num_planned / num_processes,
        estimate=estimate,
        warnings=[each for each in (estimate.warning, too_large) if each is not None],
    )
