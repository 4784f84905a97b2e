"""Sampling: its distribution, and its dependence on nothing but seed and line number."""

import math
from collections import Counter
from functools import partial

import pytest
import small_models
import torch
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search import search
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble
from tfm.search.sampling import _distribution, _draw
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK

V = 9
SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS]]
LINES = [1, 2, 3, 4]


transformer = partial(small_models.transformer, V)
MODEL = transformer(0)


def draw(sources=SOURCES, lines=LINES, model=MODEL, **config):
    settings = SearchConfig(
        **{"search": "sample", "max_extra_length": 5, "min_length": 0, **config}
    )
    with torch.inference_mode():
        return search(model, *batch_of(sources), settings, line_numbers=lines)


# --- dependence on seed and line number


def test_the_seed_determines_the_samples():
    assert draw(n_best=3, seed=7) == draw(n_best=3, seed=7)
    one, other = ([each[0].tokens for each in draw(seed=seed)] for seed in (7, 8))
    assert one != other


def test_more_samples_include_fewer_samples():
    for few, more in zip(draw(n_best=2), draw(n_best=6), strict=True):
        assert not Counter(h.tokens for h in few) - Counter(h.tokens for h in more)


# --- the distribution


def first_tokens(**config):
    """Return the relative frequency of each token as the first of many samples."""
    [found] = draw([SOURCES[0]], [1], n_best=4_000, max_extra_length=1, **config)
    counts = Counter((*h.tokens, EOS)[0] for h in found)
    return torch.tensor([counts[token] / len(found) for token in range(V)])


def first_log_probs():
    """Return the model's log probabilities, -inf for tokens that are never produced."""
    with torch.inference_mode():
        logits = MODEL.step(torch.tensor([[BOS]]), MODEL.start(*batch_of([SOURCES[0]])))[0, 0]
    log_probs = logits.log_softmax(dim=-1)
    log_probs[[PAD, BOS, UNK]] = -math.inf
    return log_probs


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_the_models_probabilities_at_the_temperature(temperature):
    expected = (first_log_probs() / temperature).softmax(dim=-1)
    # Four standard deviations of 4,000 draws.
    assert (first_tokens(temperature=temperature) - expected).abs().max() < 0.032


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (None, None, {0, 1, 2, 3}),
        (None, 0.0, {1}),
        (None, 0.49, {1}),
        (None, 0.51, {1, 3}),
        (None, 0.79, {1, 3}),
        (None, 0.81, {1, 3, 0}),
        (None, 1.0, {0, 1, 2, 3}),
        (2, None, {1, 3}),
        (9, None, {0, 1, 2, 3}),
        (2, 0.62, {1}),  # 0.5 / (0.5 + 0.3) = 0.625
        (2, 0.63, {1, 3}),
    ],
)
def test_the_nucleus_is_the_smallest_set_with_probability_top_p(top_k, top_p, kept):
    log_probs = torch.tensor([[[0.15, 0.5, 0.05, 0.3]]]).log()
    weights = _distribution(log_probs, SearchConfig(search="sample", top_k=top_k, top_p=top_p))
    assert set(weights[0, 0].nonzero().flatten().tolist()) == kept
    chosen = sorted(kept)
    probabilities = weights[0, 0, chosen] / weights[0, 0, chosen].sum()
    expected = log_probs[0, 0, chosen].double().softmax(dim=-1)
    torch.testing.assert_close(probabilities, expected)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"epsilon": 0.0}, {0, 1, 2, 3}),
        ({"epsilon": 0.1}, {0, 1, 3}),
        ({"epsilon": 0.2}, {1, 3}),
        ({"epsilon": 0.9}, {1}),  # the most probable token, although it is improbable
        ({"epsilon": 0.35, "temperature": 2.0}, {1}),  # 0.21, 0.39, 0.12 and 0.30
        ({"epsilon": 0.4, "top_k": 2}, {1}),  # 0.625 and 0.375
        ({"epsilon": 0.1, "top_p": 0.6}, {1, 3}),
        ({"epsilon": 0.4, "top_p": 0.6}, {1}),
    ],
    ids=str,
)
def test_epsilon_keeps_the_tokens_of_at_least_this_probability(settings, kept):
    log_probs = torch.tensor([[[0.15, 0.5, 0.05, 0.3]]]).log()
    weights = _distribution(log_probs, SearchConfig(search="sample", **settings))
    assert set(weights[0, 0].nonzero().flatten().tolist()) == kept


def test_epsilon_keeps_all_of_several_most_probable_tokens():
    log_probs = torch.full((1, 1, 8), 1 / 8).log()
    weights = _distribution(log_probs, SearchConfig(search="sample", epsilon=0.5))
    assert (weights > 0).all()


def test_temperature_is_applied_before_the_nucleus():
    log_probs = torch.tensor([[[0.6, 0.3, 0.1]]]).log()
    config = SearchConfig(search="sample", temperature=0.5, top_p=0.75)
    # Squared probabilities are 0.36, 0.09 and 0.01: the first token has 0.36 / 0.46 = 0.78.
    assert _distribution(log_probs, config)[0, 0].nonzero().flatten().tolist() == [0]


def test_a_random_number_draws_the_token_at_its_cumulative_probability():
    weights = torch.tensor([[[1.0, 0.0, 2.0, 1.0, 0.0]]], dtype=torch.float64)
    for number, token in [(0, 0), (0.249, 0), (0.25, 2), (0.749, 2), (0.75, 3), (0.999999, 3)]:
        numbers = torch.tensor([[number]], dtype=torch.float64)
        assert _draw(weights, numbers).tolist() == [[token]]


@pytest.mark.parametrize(
    "truncation", [{"top_k": 1}, {"top_p": 0.0}, {"epsilon": 1.0}, {"temperature": 0.01}]
)
def test_sampling_only_the_most_probable_token_is_greedy_search(truncation):
    with torch.inference_mode():
        greedy = search(
            MODEL, *batch_of(SOURCES), SearchConfig(beam_size=1, max_extra_length=5, min_length=0)
        )
    for samples, [best] in zip(draw(n_best=2, **truncation), greedy, strict=True):
        assert [h.tokens for h in samples] == [best.tokens] * 2
        assert samples[0].log_prob == pytest.approx(best.log_prob, abs=1e-5)


# --- the outputs


@pytest.mark.parametrize("models", [[MODEL], [MODEL, transformer(1)]], ids=["model", "ensemble"])
def test_samples_are_sorted_and_scored_without_temperature(models):
    config = {"n_best": 5, "temperature": 1.7, "top_k": 4}
    found = draw(model=models[0] if len(models) == 1 else Ensemble(models), **config)
    for source, samples in zip(SOURCES, found, strict=True):
        assert len(samples) == 5
        assert [h.score for h in samples] == sorted((h.score for h in samples), reverse=True)
        with torch.inference_mode():
            outputs = forced_decoding(
                models, *batch_of([source] * 5), [h.tokens for h in samples], SearchConfig()
            )
        for hypothesis, output in zip(samples, outputs, strict=True):
            assert hypothesis.log_prob == pytest.approx(output.log_prob, abs=1e-4)
            assert hypothesis.score == pytest.approx(output.score, abs=1e-4)
