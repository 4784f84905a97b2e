"""Exact search, compared with the list of all possible outputs."""

import itertools
from functools import partial

import pytest
import small_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search import exact, search
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import beam_search
from tfm.search.exact import exact_search
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble
from tfm.vocabulary.subword import EOS

WORDS = (4, 5, 6)
V = 7
SOURCES = [[4, 5, EOS], [6, EOS], [EOS]]
ALPHAS = [0.0, 0.6, 1.0, 3.0, -0.5, -2.0]
transformer = partial(small_models.transformer, V, sharpness=4.0)
recurrent = partial(small_models.recurrent, V, sharpness=4.0)


def find(models, sources, **config):
    model = models[0] if len(models) == 1 else Ensemble(models)
    settings = SearchConfig(**{"search": "exact", "min_length": 0, **config})
    results = []
    with torch.inference_mode():
        for source in sources:
            one, other = (
                ActiveHypotheses(model, *batch_of([source]), settings, None) for _ in range(2)
            )
            results.append(exact_search(one, beam_search(other, settings)[0], settings))
    return results


def find_by_beam(models, sources, **config):
    with torch.inference_mode():
        return search(models[0], *batch_of(sources), SearchConfig(min_length=0, **config))


def all_outputs(models, source, *, alpha, max_length):
    """Return all possible outputs, best first, scored by forced decoding."""
    outputs = [
        list(words)
        for length in range(max_length)
        for words in itertools.product(WORDS, repeat=length)
    ]
    with torch.inference_mode():
        padded, lengths = batch_of([source] * len(outputs))
        config = SearchConfig(length_penalty=alpha)
        scored = forced_decoding(models, padded, lengths, outputs, config)
    return sorted(scored, key=lambda h: -h.score)


MODELS = {
    "transformer": [transformer(0)],
    "another": [transformer(1, sharpness=1.0)],
    "recurrent": [recurrent(2)],
    "ensemble": [transformer(3), recurrent(3)],
}


@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("alpha", [0.6, -0.5])
@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 1), (3, 3)])
def test_the_best_of_all_outputs_are_found_and_proven(models, alpha, beam_size, n_best):
    results = find(models, SOURCES, length_penalty=alpha, beam_size=beam_size, n_best=n_best,
                   max_extra_length=2)  # fmt: skip
    for result, source in zip(results, SOURCES, strict=True):
        expected = all_outputs(models, source, alpha=alpha, max_length=len(source) + 2)[:n_best]
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in expected]
        for found, best in zip(result.hypotheses, expected, strict=True):
            assert found.log_prob == pytest.approx(best.log_prob, abs=1e-4)
            assert found.score == pytest.approx(best.score, abs=1e-4)
            assert found.proven is True
        assert result.proven


def test_the_best_of_all_outputs_of_a_minimum_length_is_found_and_proven():
    models, alpha, min_length = MODELS["transformer"], 0.6, 2
    results = find(models, SOURCES, length_penalty=alpha, max_extra_length=2, min_length=min_length)
    for result, source in zip(results, SOURCES, strict=True):
        outputs = all_outputs(models, source, alpha=alpha, max_length=len(source) + 2)
        best = next(output for output in outputs if len(output.tokens) >= min_length)
        assert result.proven
        assert result.hypotheses[0].tokens == best.tokens
        assert result.hypotheses[0].log_prob == pytest.approx(best.log_prob, abs=1e-4)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from(ALPHAS),
    node_limit=st.integers(1, 60),
    n_best=st.integers(1, 3),
)
def test_results_are_at_least_as_good_as_the_beams_and_proofs_are_correct(
    seed, alpha, node_limit, n_best
):
    models = [transformer(seed)]
    config = {"length_penalty": alpha, "beam_size": 3, "n_best": n_best, "max_extra_length": 2}
    results = find(models, SOURCES, node_limit=node_limit, **config)
    beams = find_by_beam(models, SOURCES, **config)
    for result, beam, source in zip(results, beams, SOURCES, strict=True):
        assert result.num_nodes <= node_limit
        assert [h.proven for h in result.hypotheses] == [result.proven] * n_best
        for found, beam_output in zip(result.hypotheses, beam, strict=True):
            assert found.score >= beam_output.score - 1e-5
        if result.proven:
            best = all_outputs(models, source, alpha=alpha, max_length=len(source) + 2)
            assert [h.tokens for h in result.hypotheses] == [h.tokens for h in best[:n_best]]


def test_the_node_limit_is_exact():
    models = [transformer(1, sharpness=0.1)]
    config = {"length_penalty": 3.0, "max_extra_length": 2}
    [free] = find(models, [[4, 5, EOS]], **config)
    [just] = find(models, [[4, 5, EOS]], node_limit=free.num_nodes, **config)
    assert just == free
    [less] = find(models, [[4, 5, EOS]], node_limit=free.num_nodes - 1, **config)
    assert not less.proven


def test_max_rows_does_not_change_the_result(monkeypatch):
    models = MODELS["transformer"]
    expected = find(models, SOURCES, n_best=2, max_extra_length=2)
    for rows in (1, 2, 7):
        monkeypatch.setattr(exact, "_MAX_ROWS", rows)
        for result, other in zip(
            find(models, SOURCES, n_best=2, max_extra_length=2), expected, strict=True
        ):
            assert [h.tokens for h in result.hypotheses] == [h.tokens for h in other.hypotheses]
            assert result.proven
