"""The residual sum and its normalisation, by its formula."""

import pytest
import torch
import torch.nn.functional as F

from tfm.kernels.dropout_add_norm import dropout_add_norm
from tfm.kernels.philox import keep_scale

N, D = 40, 12


def new_inputs(num_rows=N):
    torch.manual_seed(0)
    shapes = ((num_rows, D), (num_rows, D), (D,), (D,))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def test_without_dropout_it_is_the_norm_of_the_sum():
    residual, branch, weight, bias = new_inputs()
    total, normed = dropout_add_norm(residual, branch, weight, bias, eps=1e-5)
    torch.testing.assert_close(total, residual + branch)
    torch.testing.assert_close(normed, F.layer_norm(residual + branch, (D,), weight, bias, 1e-5))


def test_dropout_takes_from_the_branch_alone_and_scales_the_rest():
    residual, branch, weight, bias = new_inputs()
    total, _normed = dropout_add_norm(
        residual, branch, weight, bias, eps=1e-5, dropout=0.25, seed=torch.tensor([4])
    )
    added = total - residual
    is_kept = added.abs() > 1e-9
    assert 0.6 < is_kept.double().mean() < 0.9
    expected = torch.where(is_kept, branch * keep_scale(0.25), 0.0)
    torch.testing.assert_close(added, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_gradients_are_those_of_finite_differences(dropout):
    seed = torch.tensor([5])
    assert torch.autograd.gradcheck(
        lambda *inputs: dropout_add_norm(*inputs, eps=1e-5, dropout=dropout, seed=seed),
        new_inputs(num_rows=3),
    )


def test_statistics_of_half_precision_rows_are_single_precision():
    residual, branch, weight, bias = (x.detach() for x in new_inputs())
    # A mean that dwarfs the deviations: half precision could not tell them apart.
    residual = (residual + 100.0).bfloat16()
    total, normed = dropout_add_norm(residual, branch.bfloat16(), weight, bias, eps=1e-5)
    expected = F.layer_norm(total.double(), (D,), weight, bias, 1e-5)
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.double(), expected, rtol=2**-8, atol=1e-5)
