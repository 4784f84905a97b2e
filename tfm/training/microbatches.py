"""The size of microbatches: from the memory of a device, before any is computed."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from tfm.config import RunConfig
from tfm.dataset.batching import DEFAULT_MAX_TOKENS, Batcher
from tfm.dataset.parallel import Integers
from tfm.machine.memory import USABLE_SHARE
from tfm.model.cost import Cost

_UNLIMITED = 1 << 30  # tokens
_MIN_TOKENS = 256
_GRADIENT_BYTES = 4  # of a parameter


def max_microbatch_tokens(
    run: RunConfig,
    device: torch.device,
    cost: Cost,
    *,
    num_processes: int = 1,
    compiles: bool = False,
    memory_bytes: float = math.inf,
) -> int:
    """Return the maximum number of tokens per side of a microbatch of a new run, with padding.

    If it is not set, a GPU computes large microbatches, and all of its packed batch at once if the
    layers are compiled, as far as an estimate of the memory allows it.

    Args:
        run: The settings.
        device: The device of each process.
        cost: The cost of the model.
        num_processes: The number of processes.
        compiles: Whether the layers are compiled.
        memory_bytes: The memory of a GPU; infinite if it is not known.
    """
    if run.batching.max_tokens is not None:
        return run.batching.max_tokens
    if device.type == "cpu":
        return DEFAULT_MAX_TOKENS
    wanted = _UNLIMITED if compiles else max(DEFAULT_MAX_TOKENS, run.batching.batch_tokens)
    kept: float = cost.state_bytes + cost.average_bytes
    if run.training.shard and num_processes > 1:
        # Microbatches add to full gradients, until the last one.
        kept = kept / num_processes + _GRADIENT_BYTES * cost.num_parameters
    free = USABLE_SHARE * memory_bytes - kept
    return int(max(_MIN_TOKENS, min(wanted, free / cost.token_bytes)))


def num_padded(batcher: Batcher, indices: Integers) -> int:
    """Return the number of tokens of the longer side of pairs [B], with padding."""
    return len(indices) * batcher.longest(indices)


def largest_microbatches(batcher: Batcher, microbatches: Sequence[Integers]) -> list[Integers]:
    """Return the microbatch of most tokens, and one of this size of the longest pairs of an epoch.

    Layers that are compiled for the first need not be compiled again for the second.
    """
    most = max(microbatches, key=lambda each: int(np.add(*batcher.lengths(each)).sum()))
    sample = batcher.sample()
    lengths = np.maximum(*batcher.lengths(sample))
    longest = sample[np.argsort(-lengths, kind="stable")]
    num_pairs = max(1, num_padded(batcher, most) // int(lengths.max()))
    return [most, longest[:num_pairs]]
