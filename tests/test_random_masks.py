import math

import pytest
import torch

from tfm.backends.random_masks import RandomMasks, kept_scale

TYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dropout", [0.001, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_many_are_kept_as_should_be(dropout, dtype):
    masks = RandomMasks()
    masks.seed(3)
    count = 1_000_001
    mask = masks.draw(torch.empty(count, dtype=dtype), dropout)
    assert mask.dtype == dtype
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    kept = float(mask.double().mean())
    deviation = math.sqrt(dropout * (1 - dropout) / count)
    assert abs(kept - (1 - dropout)) < 4 * deviation + 2**-17
    assert kept * kept_scale(dropout) == pytest.approx(1, abs=5 * deviation / (1 - dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.25, 0.9])
def test_the_scale_is_that_of_the_probability_drawn_with(dropout):
    assert kept_scale(dropout) == pytest.approx(1 / (1 - dropout), rel=1e-4)


def test_equal_seeds_draw_equal_masks_and_others_others():
    like = torch.empty(100, 7)
    masks = RandomMasks()
    draws = []
    for seed in (1, 1, 2):
        masks.seed(seed)
        draws.append((masks.draw(like, 0.5), masks.draw(like, 0.5)))
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])
    assert not torch.equal(draws[0][0], draws[2][0])


def test_elements_are_dropped_independently_of_their_neighbors():
    """The four that share a draw as well as those of two draws."""
    masks = RandomMasks()
    mask = masks.draw(torch.empty(1 << 20), 0.5) - 0.5
    for distance in (1, 2, 3, 4, 5, 64):
        correlation = float((mask[:-distance] * mask[distance:]).mean()) * 4
        assert abs(correlation) < 4 / math.sqrt(len(mask))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1023])
def test_any_number_of_elements_can_be_drawn_for(size):
    assert RandomMasks().draw(torch.empty(size), 0.5).shape == (size,)


def test_a_mask_lies_in_order_whatever_it_is_for():
    like = torch.empty(3, 5).T
    assert RandomMasks().draw(like, 0.5).is_contiguous()
