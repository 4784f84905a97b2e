"""The size of microbatches, by device and memory."""

import numpy as np
import pytest
import torch

from tfm.config import run_config
from tfm.dataset.batching import DEFAULT_MAX_TOKENS
from tfm.model.cost import model_cost
from tfm.training.accumulation import largest_microbatches, max_microbatch_tokens

CPU, GPU = map(torch.device, ("cpu", "cuda"))
SIZES = 37_000, 37_000
BASE = model_cost(run_config("base", {}).model, SIZES)


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CPU, {}, DEFAULT_MAX_TOKENS),
        (CPU, {"max_tokens": 100}, 100),
        (GPU, {"max_tokens": 100}, 100),
        (GPU, {}, 25_000),
        (GPU, {"batch_tokens": 1_000}, DEFAULT_MAX_TOKENS),
    ],
)
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_gpu_computes_larger_microbatches(device, changes, expected, num_processes):
    run = run_config("base", {"batching": changes})
    found = max_microbatch_tokens(run, device, BASE, num_processes=num_processes)
    assert found == expected


def tokens_in(gigabytes, **options):
    training = {"shard": options.pop("shard", False)}
    run = run_config("base", {"training": training})
    memory = {"packed": True, "memory_bytes": gigabytes * 1e9}
    return max_microbatch_tokens(run, GPU, BASE, **memory, **options)


def test_microbatches_of_a_gpu_fit_into_its_memory():
    for gigabytes in (8, 16, 80):
        found = tokens_in(gigabytes)
        needed = BASE.state_bytes + found * BASE.token_bytes
        assert 0.89e9 * gigabytes < needed <= 0.9e9 * gigabytes
        assert tokens_in(gigabytes, num_processes=8) == found
        # Shards leave more room, but not for the gradients.
        sharded = tokens_in(gigabytes, num_processes=8, shard=True)
        gained = BASE.state_bytes * 5 / 8 / BASE.token_bytes
        assert sharded - found == pytest.approx(gained, abs=1)
    assert 0 < tokens_in(0.5) < 1_000


def test_the_largest_microbatches_have_most_tokens_or_the_longest_pairs(new_trainer):
    batcher = new_trainer().batcher
    microbatches = batcher.split(batcher.epoch(1)[0], max_tokens=150)
    most, longest = largest_microbatches(batcher, microbatches)

    def num_tokens(rows):
        return sum(int(each.sum()) for each in batcher.lengths(rows))

    assert num_tokens(most) == max(map(num_tokens, microbatches))
    everything = np.arange(200)
    assert batcher.longest(longest) == batcher.longest(everything)
    shortest_of_them = np.maximum(*batcher.lengths(longest)).min()
    others = np.setdiff1d(everything, longest)
    assert shortest_of_them >= batcher.longest(others)
    assert batcher.microbatch_tokens(longest) <= batcher.microbatch_tokens(most)
