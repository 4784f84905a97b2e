"""Random masks of dropout on a CPU: their rate, scale, seeds and independence."""

import math

import pytest
import torch

from tfm.backends.sentence_attention import RandomMasks, keep_scale

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dropout", [0.001, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_keep_rate_is_within_four_sigma(dropout, dtype):
    masks = RandomMasks()
    masks.seed(3)
    count = 1_000_001
    mask = masks.draw(torch.empty(count, dtype=dtype), dropout)
    assert mask.dtype == dtype
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    keep_rate = float(mask.double().mean())
    deviation = math.sqrt(dropout * (1 - dropout) / count)
    assert abs(keep_rate - (1 - dropout)) < 4 * deviation + 2**-17
    assert keep_rate * keep_scale(dropout) == pytest.approx(1, abs=5 * deviation / (1 - dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.25, 0.9])
def test_the_scale_is_the_inverse_keep_probability(dropout):
    assert keep_scale(dropout) == pytest.approx(1 / (1 - dropout), rel=1e-4)


def test_masks_are_equal_for_equal_seeds_only():
    x = torch.empty(100, 7)
    masks = RandomMasks()
    draws = []
    for seed in (1, 1, 2):
        masks.seed(seed)
        draws.append((masks.draw(x, 0.5), masks.draw(x, 0.5)))
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])
    assert not torch.equal(draws[0][0], draws[2][0])


def test_neighbors_are_dropped_independently():
    """Both the four elements of one random number and those of different ones."""
    masks = RandomMasks()
    mask = masks.draw(torch.empty(1 << 20), 0.5) - 0.5
    for distance in (1, 2, 3, 4, 5, 64):
        correlation = float((mask[:-distance] * mask[distance:]).mean()) * 4
        assert abs(correlation) < 4 / math.sqrt(len(mask))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1023])
def test_masks_have_any_size(size):
    assert RandomMasks().draw(torch.empty(size), 0.5).shape == (size,)


def test_the_mask_of_a_transposed_tensor_is_contiguous():
    x = torch.empty(3, 5).T
    assert RandomMasks().draw(x, 0.5).is_contiguous()
