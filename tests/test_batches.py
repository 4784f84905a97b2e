"""How the lines of a chunk are grouped into batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import SearchConfig
from tfm.data.subword import Vocabulary
from tfm.inference.batches import BatchLimits, Chunk, SentenceEncoder
from tfm.storage.checkpoint.run_folder import checkpoints

NUM_LINES = 60


@pytest.fixture(scope="module")
def batches(trained_run):
    """Group lines of 1 to 12 words."""
    vocabulary = Vocabulary.load(checkpoints(trained_run)[-1])
    chunk = Chunk(first_line=1, lines=["seven " * (1 + i % 12) for i in range(NUM_LINES)])

    def group(config=SearchConfig(), **limits):  # noqa: B008 - immutable
        encoder = SentenceEncoder(
            vocabulary, BatchLimits(**{"max_positions": None, "max_tokens": 100} | limits), config
        )
        return encoder.to_search(chunk)

    return group


def padded(batch):
    return len(batch) * (1 + max(map(len, batch.sources)))


@given(max_tokens=st.integers(1, 2_000), num_workers=st.integers(1, 5))
def test_batches_keep_the_limit_and_hold_each_line_once(batches, max_tokens, num_workers):
    found = batches(max_tokens=max_tokens, num_workers=num_workers)
    assert all(padded(batch) <= max_tokens or len(batch) == 1 for batch in found)
    assert sorted(n for batch in found for n in batch.line_numbers) == [*range(1, NUM_LINES + 1)]
    assert len(found) >= num_workers
    longest = [max(map(len, batch.sources)) for batch in found]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("num_workers", [1, 3, 100])
def test_workers_that_refill_slots_get_one_batch_each_with_equal_work(batches, num_workers):
    # --max-tokens then limits the number of slots, not the batch.
    found = batches(SearchConfig(max_tokens=10), num_workers=num_workers, refills_slots=True)
    assert len(found) == min(num_workers, NUM_LINES)
    assert sorted(n for batch in found for n in batch.line_numbers) == [*range(1, NUM_LINES + 1)]
    tokens = [sum(map(len, batch.sources)) for batch in found]
    most_tokens = max(len(ids) for batch in found for ids in batch.sources)
    assert max(tokens) - min(tokens) <= most_tokens


@pytest.mark.parametrize("settings", [{"search": "sample"}, {"num_groups": 2}, {"beam_size": 65}])
def test_searches_that_use_no_slots_keep_the_limit(batches, settings):
    config = SearchConfig(**{"beam_size": 4} | settings)
    found = batches(config, refills_slots=True)
    assert len(found) > 1
    assert all(padded(batch) <= 100 for batch in found)
