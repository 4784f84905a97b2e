"""Dropout masks by Philox: against the published generator, and their statistics."""

import math

import pytest
import torch
from plain_kernels import _philox, keep_mask

from tfm.backends.dropout import drop_threshold, keep_scale


def new_seed(number):
    return torch.tensor([number])


def test_words_equal_those_of_the_published_generator():
    zero = torch.zeros(1, dtype=torch.int64)
    words = [int(word) for word in _philox(new_seed(0), zero, zero, zero)]
    # Known answers of Random123 for philox4x32 with 7 rounds.
    assert words == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


@pytest.mark.parametrize("dropout", [0.1, 0.3, 0.5])
def test_the_keep_rate_is_within_four_sigma_in_every_column(dropout):
    keep = keep_mask(new_seed(5), num_streams=4, num_rows=5000, num_columns=19, dropout=dropout)
    rates = keep.flatten(0, 1).double().mean(dim=0)
    sigma = math.sqrt(dropout * (1 - dropout) / 20_000)
    assert float((rates - (1 - dropout)).abs().max()) < 4 * sigma


def test_neighbors_are_dropped_independently():
    keep = (
        keep_mask(new_seed(6), num_streams=2, num_rows=2000, num_columns=16, dropout=0.5).double()
        - 0.5
    )
    sigma = 0.25 / math.sqrt(keep[..., 1:].numel())
    for ours, theirs in (
        (keep[..., 1:], keep[..., :-1]),
        (keep[:, 1:], keep[:, :-1]),
        (keep[:1], keep[1:]),
    ):
        assert abs(float((ours * theirs).mean())) < 4 * sigma * math.sqrt(2)


def test_masks_differ_by_seed_and_stream_and_repeat_otherwise():
    def draw(number, **sizes):
        sizes = {"num_streams": 2, "num_rows": 9, "num_columns": 21} | sizes
        return keep_mask(new_seed(number), **sizes, dropout=0.5)

    assert torch.equal(draw(7), draw(7))
    assert not torch.equal(draw(7), draw(8))
    assert not torch.equal(draw(7), draw(7 + (1 << 32)))
    assert not torch.equal(draw(7)[0], draw(7)[1])
    # An element does not depend on the size of the mask.
    assert torch.equal(draw(7), draw(7, num_streams=3, num_rows=30, num_columns=50)[:2, :9, :21])


def test_the_scale_is_the_exact_inverse_of_the_keep_probability():
    for dropout in (0.0, 0.1, 0.3, 0.75):
        probability = 1 - drop_threshold(dropout) / 65536
        assert keep_scale(dropout) * probability == pytest.approx(1.0, abs=1e-15)
        assert probability == pytest.approx(1 - dropout, abs=1e-5)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0])
def test_a_dropout_outside_0_to_1_is_refused(dropout):
    with pytest.raises(ValueError, match="dropout must be in"):
        drop_threshold(dropout)
