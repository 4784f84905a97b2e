"""tfm train --dry-run: the cost of a run, without training."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfm.backends.selection import verified_compute
from tfm.config import RunConfig
from tfm.data.batching import Batcher
from tfm.device.threads import set_num_threads
from tfm.model.cost import Cost, model_cost
from tfm.stages.training_data import open_data


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The cost of a run; numbers per step are means over an epoch."""

    data_dir: Path
    compute: str  # device and precision, in words
    cost: Cost
    vocab_sizes: tuple[int, int]  # source, target
    num_pairs: int
    steps_per_epoch: int
    tokens_per_step: float  # target tokens
    num_processes: int
    microbatches_per_step: float  # per process
    flops_per_step: float
    max_steps: int


def forecast(data_dir: Path, run: RunConfig, *, num_processes: int = 1) -> Forecast:
    """Compute the cost of a run on a number of processes.

    Raises:
        DataError: The dataset cannot be used.
        UsageError: The settings do not fit the dataset or device.
    """
    data = open_data(data_dir, run)
    compute = verified_compute(run.training.device, run.training.precision, trains=True)
    set_num_threads(run.training.threads, num_processes=num_processes)
    source, target = data.info.vocab_sizes
    max_tokens = run.batching.max_tokens
    cost = model_cost(
        run.model, source_vocab_size=source, target_vocab_size=target, max_tokens=max_tokens
    )
    batcher = Batcher(data.train, run.batching, seed=run.training.seed)
    steps = batcher.num_batches()
    epoch_flops = cost.training_flops(*batcher.lengths(np.arange(len(data.train))))
    num_shards = math.lcm(run.batching.num_dropout_shards, num_processes)
    epoch = batcher.epoch(1)
    num_microbatches = sum(len(batcher.split(rows, multiple_of=num_shards)) for rows in epoch)
    return Forecast(
        data_dir=data_dir,
        compute=str(compute),
        cost=cost,
        vocab_sizes=data.info.vocab_sizes,
        num_pairs=len(data.train),
        steps_per_epoch=steps,
        tokens_per_step=batcher.num_tokens / steps,
        num_processes=num_processes,
        microbatches_per_step=num_microbatches / steps / num_processes,
        flops_per_step=epoch_flops / steps,
        max_steps=run.training.max_steps,
    )
