"""Beam search, compared with exhaustive search, a slow reference search and greedy search."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search import search
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import finish, num_candidates
from tfm.search.hypotheses import length_penalty
from tfm.search.model import SearchableModel
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK

V = 7  # 4, 5 and 6 are words


class Table(SearchableModel):
    """A model whose probabilities are random, but fixed for each source and prefix."""

    max_positions = None

    def __init__(self, seed=0, *, spread=1.5):
        self._seed = seed
        self._spread = spread

    def log_probs(self, source, prefix):
        key = hash((self._seed, tuple(source), tuple(prefix)))
        generator = torch.Generator().manual_seed(key % (1 << 62))
        logits = torch.randn(V, generator=generator, dtype=torch.float64) * self._spread
        return logits.float().log_softmax(dim=-1)

    def start(self, source, lengths):
        sources = [row[:n].tolist() for row, n in zip(source, lengths.tolist(), strict=True)]
        return TableState([[(sentence, ())] for sentence in sources])

    def step_rows(self, tokens, state, rows):
        for beam, newest in zip(state.beams, tokens.tolist(), strict=True):
            for row, token in enumerate(newest):
                source, prefix = beam[row]
                beam[row] = (source, (*prefix, token))
        flat = list(itertools.chain.from_iterable(state.beams))
        return torch.stack([self.log_probs(*flat[row]) for row in rows.tolist()]).__getitem__


class TableState:
    def __init__(self, beams):
        self.beams = beams

    def reorder(self, rows):
        flat = list(itertools.chain.from_iterable(self.beams))
        self.beams = [[flat[index] for index in row] for row in rows.tolist()]


def find(model, sources, **config):
    with torch.inference_mode():
        return search(model, *batch_of(sources), SearchConfig(**{"min_length": 0, **config}))


def slow_search(table, source, *, beam_size, alpha, max_length, n_best=1):
    """Keep `beam_size` hypotheses alive at each step, up to the maximum length.

    An EOS among as many best continuations ends one. A beam of one ends with it: greedy search.
    """
    live, finished = [((BOS,), 0.0)], []
    for length in range(1, max_length + 1):
        candidates = []
        for prefix, log_prob in live:
            log_probs = table.log_probs(source, prefix).tolist()
            words = [token for token in range(V) if token not in (PAD, BOS, UNK, EOS)]
            allowed = [EOS] if length == max_length else [EOS, *words]
            candidates += [((*prefix, token), log_prob + log_probs[token]) for token in allowed]
        candidates.sort(key=lambda candidate: -candidate[1])
        ended = [candidate for candidate in candidates[:beam_size] if candidate[0][-1] == EOS]
        finished += [
            (prefix[1:-1], log_prob, log_prob / ((5 + length) / 6) ** alpha)
            for prefix, log_prob in ended
        ]
        others = [candidate for candidate in candidates if candidate[0][-1] != EOS]
        live = [] if ended and beam_size == 1 else others[:beam_size]
    return sorted(finished, key=lambda output: -output[2])[:n_best]


def assert_same(found, expected):
    assert [h.tokens for h in found] == [tokens for tokens, *_ in expected]
    assert [h.log_prob for h in found] == pytest.approx([p for _, p, _ in expected], abs=1e-5)
    assert [h.score for h in found] == pytest.approx([s for *_, s in expected], abs=1e-5)


SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS]]
ALPHAS = [0.0, 0.6, 1.0, 3.0, -0.5, -2.0]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    beam_size=st.integers(1, 5),
    alpha=st.sampled_from(ALPHAS),
    spread=st.sampled_from([0.5, 1.5, 4.0]),
    extra=st.integers(1, 5),
    data=st.data(),
)
def test_stopping_early_never_changes_the_result(seed, beam_size, alpha, spread, extra, data):
    n_best = data.draw(st.integers(1, beam_size))
    table = Table(seed, spread=spread)
    found = find(table, SOURCES, beam_size=beam_size, n_best=n_best, length_penalty=alpha,
                 max_extra_length=extra)  # fmt: skip
    for best, source in zip(found, SOURCES, strict=True):
        expected = slow_search(
            table, source, beam_size=beam_size, alpha=alpha, max_length=len(source) + extra,
            n_best=n_best,
        )  # fmt: skip
        assert_same(best, expected)


def test_a_beam_of_one_is_greedy_search():
    """Even if a longer output would have a better score."""
    for seed in range(20):
        table = Table(seed)
        found = find(table, SOURCES, beam_size=1, length_penalty=3.0, max_extra_length=4)
        for best, source in zip(found, SOURCES, strict=True):
            limit = len(source) + 4
            expected = slow_search(table, source, beam_size=1, alpha=3.0, max_length=limit)
            assert_same(best, expected)


class CountingTable(Table):
    """Counts the hypotheses that are extended."""

    num_rows = 0

    def step_rows(self, tokens, state, rows):
        self.num_rows += len(rows)
        return super().step_rows(tokens, state, rows)


def find_unpruned(model, config):
    """Extend all hypotheses of a sentence while any of them can still improve its n best."""
    hypotheses = ActiveHypotheses(model, *batch_of(SOURCES), config, None)
    finished = [[] for _ in SOURCES]
    while hypotheses.num_open:
        candidates = hypotheses.best_continuations(num_candidates(config.beam_size))
        continued, can_improve = finish(
            hypotheses, candidates, finished, config.beam_size, config.n_best
        )
        is_possible = (continued.tokens != EOS) & (continued.totals > -math.inf)
        hypotheses.advance(continued, can_improve.any(axis=1, keepdims=True) & is_possible)
    return finished


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from(ALPHAS),
    spread=st.sampled_from([0.5, 1.5, 4.0]),
    data=st.data(),
)
def test_pruning_does_not_change_the_n_best(seed, beam_size, alpha, spread, data):
    config = SearchConfig(
        min_length=0,
        beam_size=beam_size,
        n_best=data.draw(st.integers(1, beam_size)),
        length_penalty=alpha,
        max_extra_length=4,
    )
    pruned, unpruned = CountingTable(seed, spread=spread), CountingTable(seed, spread=spread)
    assert search(pruned, *batch_of(SOURCES), config) == find_unpruned(unpruned, config)
    assert pruned.num_rows <= unpruned.num_rows


def test_the_length_penalty_is_that_of_wu_et_al():
    def penalty(length, exponent):
        return length_penalty(length, SearchConfig(length_penalty=exponent))

    assert penalty(1, 0.6) == 1
    assert penalty(7, 0.0) == 1
    assert penalty(7, 0.6) == pytest.approx((5 + 7) ** 0.6 / 6**0.6)
    assert penalty(13, 1.0) == pytest.approx(3)
    assert penalty(7, -1.0) == pytest.approx(0.5)
