"""Beam search: pruning changes nothing, and the length penalty is the paper's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.workshop import ALPHAS, SOURCES, Table, settings_of
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import finish, num_candidates
from tfm.search.hypotheses import length_penalty
from tfm.search.search import search
from tfm.vocabulary.subword import EOS


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


@given(
    seed=st.integers(0, 10**6),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from(ALPHAS),
    spread=st.sampled_from([0.5, 1.5, 4.0]),
    data=st.data(),
)
def test_pruning_does_not_change_the_n_best(seed, beam_size, alpha, spread, data):
    n_best = data.draw(st.integers(1, beam_size))
    config = settings_of("beam", beam_size=beam_size, n_best=n_best, length_penalty=alpha)
    pruned, unpruned = Table(seed, spread=spread), Table(seed, spread=spread)
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
