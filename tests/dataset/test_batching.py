"""Batches: each pair once, similar lengths, bounded size, deterministic content."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import transformer

from tfm.config import BatchingConfig
from tfm.dataset.batching import PADDING, Batcher, build_batch, numbers_of_rows
from tfm.dataset.parallel import ParallelDataset
from tfm.training.loss import BatchLoss
from tfm.vocabulary.subword import BOS, EOS, PAD


class Sentences:
    """An in-memory stand-in for `TokenSequences`."""

    def __init__(self, lengths):
        random = np.random.default_rng(0)
        self._ids = [random.integers(4, 20, size=length) for length in lengths]
        self._lengths = np.array(lengths, dtype=np.int64)

    def __len__(self):
        return len(self._ids)

    def lengths(self, rows):
        return self._lengths[rows]

    def concatenate(self, rows):
        pieces = [ids for row in rows for ids in (self._ids[row], [EOS])]
        return np.concatenate(pieces), self.lengths(rows) + 1

    def __iter__(self):
        return iter(self._ids)


class Pairs:
    texts = ()

    def __init__(self, lengths):
        self.source = Sentences([source for source, _ in lengths])
        self.target = Sentences([target for _, target in lengths])

    def __len__(self):
        return len(self.source)


def new_batcher(lengths, *, seed=1, batch=200, bucket=50, max_tokens=100, packed=False):
    config = BatchingConfig(batch_tokens=batch, bucket_tokens=bucket, max_tokens=max_tokens)
    return Batcher(Pairs(lengths), config, seed=seed, packed=packed)


def as_lists(batches):
    return [rows.tolist() for rows in batches]


LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=80)
TOKENS = st.integers(1, 300)
# Typical lengths of sentences.
TYPICAL = [(5 + i % 23, 3 + (i * 7) % 29) for i in range(400)]


@given(LENGTHS, TOKENS, TOKENS, TOKENS, st.integers(1, 5))
def test_every_pair_comes_once_an_epoch_and_no_batch_is_empty(
    lengths, batch, bucket, max_tokens, epoch
):
    batcher = new_batcher(lengths, batch=batch, bucket=bucket, max_tokens=max_tokens)
    batches = batcher.epoch(epoch)
    assert len(batches) == batcher.num_batches()
    assert all(len(rows) for rows in batches)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))


def test_epochs_differ_in_the_order_and_content_of_batches():
    batcher = new_batcher(TYPICAL)
    first, second = as_lists(batcher.epoch(1)), as_lists(batcher.epoch(2))
    assert first != second
    assert {frozenset(rows) for rows in first} != {frozenset(rows) for rows in second}


def test_the_seed_determines_the_order():
    first = as_lists(new_batcher(TYPICAL, seed=5).epoch(3))
    assert as_lists(new_batcher(TYPICAL, seed=5).epoch(3)) == first
    assert as_lists(new_batcher(TYPICAL, seed=6).epoch(3)) != first


def test_lengths_in_a_bucket_are_similar():
    batcher = new_batcher(TYPICAL, batch=50, bucket=50)
    lengths = np.array(TYPICAL)
    spread = [np.ptp(lengths[rows, 1]) for rows in batcher.epoch(1)]
    assert max(spread) <= 2
    # Among equal targets, sources are sorted too.
    assert np.mean([np.ptp(lengths[rows, 0]) for rows in batcher.epoch(1)]) < 10


def test_a_batch_mixes_lengths():
    batcher = new_batcher(TYPICAL, batch=400, bucket=50)
    lengths = np.array(TYPICAL)
    assert np.mean([np.ptp(lengths[rows, 1]) for rows in batcher.epoch(1)]) > 15


@pytest.mark.parametrize("bucket", [100, 380, 700])
def test_batches_have_about_the_configured_number_of_tokens(bucket):
    batcher = new_batcher(TYPICAL, batch=1000, bucket=bucket)
    lengths = np.array(TYPICAL)[:, 1] + 1
    tokens = [lengths[rows].sum() for rows in batcher.epoch(1)]
    assert all(900 < count < 1100 for count in tokens[:-1])
    assert tokens[-1] < 1100
    assert sum(tokens) == batcher.num_tokens


@given(LENGTHS, TOKENS, st.integers(1, 9), st.booleans())
def test_microbatches_cover_the_batch_and_keep_the_token_limit(
    lengths, max_tokens, num_processes, packed
):
    batcher = new_batcher(lengths, max_tokens=max_tokens, packed=packed)
    rows = np.arange(len(lengths))
    microbatches = batcher.split(rows, multiple_of=num_processes)
    assert len(microbatches) >= min(num_processes, len(rows))
    if num_processes == 1:
        longest = [batcher.longest(microbatch) for microbatch in microbatches]
        assert longest == sorted(longest, reverse=True)
    assert sorted(np.concatenate(microbatches)) == rows.tolist()
    sizes = np.array(lengths) + 1
    for part in filter(lambda part: len(part) > 1, microbatches):
        num_tokens = sizes[part].sum(0) if packed else len(part) * sizes[part]
        assert num_tokens.max() <= max_tokens


@pytest.mark.parametrize(
    ("packed", "max_tokens", "expected"),
    [
        (False, 60, [2, 2]),
        (True, 60, [4]),
        (True, 59, [2, 2]),
        (True, 31, [1, 1, 2]),
        (True, 9, [1] * 4),
    ],
)
def test_packed_microbatches_are_limited_by_the_tokens_of_each_side(packed, max_tokens, expected):
    lengths = [(29, 1), (1, 29), (9, 9), (17, 17)]  # 60 tokens a side with EOS; longest: 30
    batcher = new_batcher(lengths, max_tokens=max_tokens, packed=packed)
    microbatches = batcher.split(np.arange(4))
    assert [*map(len, microbatches)] == expected
    largest = max(map(batcher.microbatch_tokens, microbatches))
    assert largest == {60: 60, 59: 32, 31: 30, 9: 30}[max_tokens]


@given(LENGTHS)
def test_a_batch_ends_in_rows_of_pad(lengths):
    batch = build_batch(Pairs(lengths), np.arange(len(lengths)))
    for tokens, sizes in (
        (batch.source, batch.sources.lengths),
        (batch.target_input, batch.targets.lengths),
        (batch.target_output, batch.targets.lengths),
    ):
        assert len(tokens) > sizes.sum()
        assert not tokens[: sizes.sum()].eq(PAD).any()
        padding = PADDING if tokens is batch.target_output else PAD
        assert tokens[sizes.sum() :].eq(padding).all()


@given(st.integers(1, 1_000_000))
def test_rounding_adds_few_rows_and_gives_few_distinct_sizes(num_tokens):
    [rows] = {*numbers_of_rows(num_tokens, num_tokens, coarse=False)}
    assert num_tokens < rows <= num_tokens + max(1, num_tokens / 32)
    assert rows % (1 << max(0, rows.bit_length() - 7)) == 0


def lengths_like(name, num_pairs):
    """Draw source and target lengths as those of a corpus."""
    mean, spread, longest = {"multi30k": (14, 0.35, 60), "wmt": (27, 0.65, 250)}[name]
    random = np.random.default_rng(0)
    targets = mean * np.exp(random.normal(-(spread**2) / 2, spread, num_pairs))
    sources = targets * np.exp(random.normal(0, 0.15, num_pairs))
    return [tuple(map(int, pair)) for pair in np.clip([sources, targets], 1, longest).T]


@pytest.mark.parametrize(("corpus", "num_processes"), [("multi30k", 1), ("wmt", 1), ("wmt", 8)])
def test_batches_for_compiled_layers_have_few_sizes_and_little_padding(corpus, num_processes):
    config = BatchingConfig(batch_tokens=25_000)
    batcher = Batcher(Pairs(lengths_like(corpus, 100_000)), config, seed=1, coarse_rows=True)
    real = computed = np.zeros(2)
    pairs_of_sizes, finer_sizes = set(), set()
    for _, rows in islice(batcher.batches(), 2_000):
        for pairs in batcher.split(rows, max_tokens=1 << 30, multiple_of=num_processes):
            tokens = [int(lengths.sum()) for lengths in batcher.lengths(pairs)]
            size = numbers_of_rows(*tokens, coarse=True)
            pairs_of_sizes.add(size)
            finer_sizes.update(numbers_of_rows(*tokens, coarse=False))
            real, computed = real + tokens, computed + size
    # Layers are compiled for each size of an encoder, and for each pair of sizes of a decoder.
    sizes = {size for pair in pairs_of_sizes for size in pair}
    assert len(sizes) <= 10 < len(finer_sizes)
    assert len(pairs_of_sizes) <= 16
    least = (0.95, 0.99) if num_processes == 1 else 0.92  # of sources and targets
    assert (real >= np.multiply(least, computed)).all()


@pytest.mark.parametrize("corpus", ["multi30k", "wmt"])
def test_processes_get_equally_many_tokens(corpus):
    batcher = Batcher(Pairs(lengths_like(corpus, 10_000)), BatchingConfig(), seed=1)
    for rows in batcher.epoch(1)[:-1]:
        microbatches = batcher.split(rows, max_tokens=8192, multiple_of=8)
        tokens = [sum(lengths.sum() for lengths in batcher.lengths(each)) for each in microbatches]
        by_process = [sum(tokens[rank::8]) for rank in range(8)]
        assert max(by_process) < 1.05 * np.mean(by_process)


def test_a_batch_has_the_sentences_of_its_rows(data_dir):
    dataset = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))
    sources, targets = list(dataset.source), list(dataset.target)
    rows = np.array([7, 3, 100])
    batch = build_batch(dataset, rows)
    for tokens, lengths, sentences in (
        (batch.source, batch.sources.lengths, sources),
        (batch.target_output, batch.targets.lengths, targets),
    ):
        found = torch.split(tokens[: lengths.sum()], lengths.tolist())
        assert [ids.tolist() for ids in found] == [[*sentences[row], EOS] for row in rows]
    shifted = [token for row in rows for token in (BOS, *targets[row])]
    assert batch.target_input[: batch.num_tokens].tolist() == shifted


@pytest.mark.parametrize("max_tokens", [30, 100])
def test_loss_and_gradients_of_microbatches_equal_those_of_one_batch(max_tokens):
    model = transformer(20).double()
    rows = np.arange(20)
    results = []
    for limit in (max_tokens, 10_000):
        batcher = new_batcher(TYPICAL, max_tokens=limit)
        microbatches = list(map(batcher.batch, batcher.split(rows)))
        model.zero_grad()
        losses = [
            BatchLoss(model, label_smoothing=0.1)(microbatch)[0] for microbatch in microbatches
        ]
        for loss in losses:
            loss.backward()
        results.append(
            (len(microbatches), sum(losses), [p.grad.clone() for p in model.parameters()])
        )
    (num_projections, *split), (one, *whole) = results
    assert num_projections > one == 1
    torch.testing.assert_close(split, whole)
