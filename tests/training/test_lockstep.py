"""Processes compare their weights: which ranks differ, and in what first."""

import pytest
import torch

from tfm.training.trainer import bit_sums, find_difference


@pytest.mark.parametrize(
    ("by_rank", "expected"),
    [
        ([{"a": 1, "b": 2}] * 3, None),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2}], ([1], "b")),
        ([{"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 3}], ([0], "a")),
        ([{"a": 1}, {"a": 2}], ([1], "a")),
        ([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 1}], ([1, 2], "a")),
    ],
)
def test_most_ranks_or_rank_0_are_right(by_rank, expected):
    assert find_difference(by_rank) == expected


def test_each_bit_of_a_weight_counts():
    weight = torch.randn(5, 7)
    before = bit_sums([weight])
    for bit in range(32):
        other = weight.clone()
        other.view(torch.int32)[2, 3] ^= (1 << bit) if bit < 31 else -(1 << 31)
        assert bit_sums([other]) != before


def test_weights_that_are_no_numbers_can_be_compared():
    nan = torch.tensor([1.0, float("nan")])
    assert bit_sums([nan]) == bit_sums([nan.clone()])
    assert bit_sums([]) == []
