"""Sampling: the tokens that are kept, and how one of them is drawn."""

import pytest
import torch

from tfm.config import SearchConfig
from tfm.search.sampling import _distribution, _draw

PROBABILITIES = torch.tensor([0.15, 0.5, 0.05, 0.3])


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        # The nucleus is the smallest set with the probability top_p.
        ({}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.49}, {1}),
        ({"top_p": 0.51}, {1, 3}),
        ({"top_p": 0.79}, {1, 3}),
        ({"top_p": 0.81}, {1, 3, 0}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.62}, {1}),  # 0.5 / (0.5 + 0.3) = 0.625
        ({"top_k": 2, "top_p": 0.63}, {1, 3}),
        ({"temperature": 0.5, "top_p": 0.66}, {1}),  # 0.25 / 0.365 = 0.68 of the squares
        ({"temperature": 0.5, "top_p": 0.69}, {1, 3}),
        # Epsilon keeps the tokens of at least this probability.
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
def test_truncation_keeps_the_most_probable_tokens_in_proportion(settings, kept):
    config = SearchConfig(search="sample", **settings)
    weights = _distribution(PROBABILITIES.log()[None, None], config)[0, 0]
    assert set(weights.nonzero().flatten().tolist()) == kept
    chosen = sorted(kept)
    expected = PROBABILITIES.double()[chosen] ** (1 / config.temperature)
    torch.testing.assert_close(
        weights[chosen] / weights[chosen].sum(), expected / expected.sum(), rtol=1e-6, atol=0
    )


def test_epsilon_keeps_all_of_several_most_probable_tokens():
    log_probs = torch.full((1, 1, 8), 1 / 8).log()
    weights = _distribution(log_probs, SearchConfig(search="sample", epsilon=0.5))
    assert (weights > 0).all()


def test_a_random_number_draws_the_token_at_its_cumulative_probability():
    weights = torch.tensor([[[1.0, 0.0, 2.0, 1.0, 0.0]]], dtype=torch.float64)
    for number, token in [(0, 0), (0.249, 0), (0.25, 2), (0.749, 2), (0.75, 3), (0.999999, 3)]:
        numbers = torch.tensor([[number]], dtype=torch.float64)
        assert _draw(weights, numbers).tolist() == [[token]]
