"""Compiled layers meet few numbers of rows: each costs a compilation, and memory."""

from itertools import islice
from unittest.mock import patch

import pytest
from token_dataset import VOCAB_SIZE, write_token_dataset

from tfm.config import run_config
from tfm.data import batching
from tfm.data.batching import DEFAULT_MAX_TOKENS, Batcher, round_up_rows
from tfm.data.dataset import ParallelDataset

NUM_STEPS = 2_000
MAX_SIZES = 12  # seen: 10 on one GPU, 9 on eight


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    write_token_dataset(folder, num_pairs=100_000)
    return ParallelDataset(folder / "bin", "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))


def numbers_of_rows(dataset, num_gpus: int) -> set[int]:
    run = run_config("base", {"batching": {"batch_tokens": 25_000 * num_gpus}})
    batcher = Batcher(dataset, run.batching, seed=1, coarse_rows=True)
    limit = DEFAULT_MAX_TOKENS if num_gpus > 1 else 1 << 30
    return {
        batching.round_up_rows(int(lengths.sum()), coarse=True)
        for _, rows in islice(batcher.batches(), NUM_STEPS)
        for part in batcher.split(rows, max_tokens=limit, multiple_of=num_gpus)
        for lengths in batcher.lengths(part)
    }


@pytest.mark.parametrize("num_gpus", [1, 8])
def test_few_numbers_of_rows_occur(dataset, num_gpus):
    found = numbers_of_rows(dataset, num_gpus)
    assert len(found) <= MAX_SIZES, sorted(found)


def test_finer_rows_are_noticed(dataset):
    with patch.object(batching, "round_up_rows", lambda num, coarse: round_up_rows(num)):
        assert len(numbers_of_rows(dataset, 1)) > MAX_SIZES
