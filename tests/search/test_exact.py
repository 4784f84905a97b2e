"""Exact search: proofs, and the limit of nodes."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from search.workshop import (
    ALPHAS,
    SOURCES,
    Reference,
    Table,
    assert_same,
    find,
    settings_of,
    transformer,
)
from small_models import batch_of

from tfm.search import exact
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import beam_search
from tfm.search.exact import exact_search


def result_of(model, source, **config):
    settings = settings_of("exact", **{"max_extra_length": 2, **config})
    with torch.inference_mode():
        one, other = (
            ActiveHypotheses(model, *batch_of([source]), settings, None) for _ in range(2)
        )
        return exact_search(one, beam_search(other, settings)[0], settings)


@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from(ALPHAS),
    node_limit=st.integers(1, 60),
    n_best=st.integers(1, 3),
)
def test_results_are_at_least_as_good_as_the_beams_and_proofs_are_correct(
    seed, alpha, node_limit, n_best
):
    table = Table(seed, spread=4.0)
    config = {"length_penalty": alpha, "beam_size": 3, "n_best": n_best, "max_extra_length": 2}
    for source, beam in zip(SOURCES, find("beam", table, **config), strict=True):
        result = result_of(table, source, node_limit=node_limit, **config)
        assert result.num_nodes <= node_limit
        assert [h.proven for h in result.hypotheses] == [result.proven] * n_best
        for found, beam_output in zip(result.hypotheses, beam, strict=True):
            assert found.score >= beam_output.score - 1e-5
        if result.proven:
            best = Reference(table, source, settings_of("exact", **config)).outputs(1)
            assert_same(result.hypotheses, best)


def test_the_node_limit_is_exact():
    model, config = transformer(1, sharpness=0.1), {"length_penalty": 3.0, "n_best": 1}
    free = result_of(model, SOURCES[0], **config)
    assert result_of(model, SOURCES[0], node_limit=free.num_nodes, **config) == free
    assert not result_of(model, SOURCES[0], node_limit=free.num_nodes - 1, **config).proven


def test_max_rows_does_not_change_the_result(monkeypatch):
    expected = find("exact", transformer(), n_best=2)
    for rows in (1, 2, 7):
        monkeypatch.setattr(exact, "_MAX_ROWS", rows)
        for best, others in zip(find("exact", transformer(), n_best=2), expected, strict=True):
            assert_same(best, others)
