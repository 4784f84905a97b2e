"""The reference of the cross-entropy kernel against autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kernels import cross_entropy_

from tfm.backends.cross_entropy import PADDING

N, V = 6, 7


def smoothed_loss(logits, targets, smoothing):
    """Return [N] cross-entropies with the smoothed distribution of §5.4."""
    distribution = torch.full_like(logits, smoothing / (V - 1))
    distribution.scatter_(1, targets[:, None], 1 - smoothing)
    return -(distribution * logits.log_softmax(dim=-1)).sum(dim=-1)


@settings(max_examples=30, deadline=None)
@given(smoothing=st.floats(0, 0.9), seed=st.integers(0, 99))
def test_losses_and_gradients_equal_autograd(smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, V, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(V, (N,), generator=generator)
    gradient = logits.detach().clone()
    losses, nlls = cross_entropy_(gradient, targets, smoothing=smoothing)
    expected = smoothed_loss(logits, targets, smoothing)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(nlls, smoothed_loss(logits, targets, 0.0))
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected.sum(), logits))


def test_padding_has_no_loss_and_no_gradient_even_if_its_logits_are_nan():
    logits = torch.randn(3, V)
    logits[1] = torch.nan
    losses, nlls = cross_entropy_(logits, torch.tensor([2, PADDING, 0]), smoothing=0.1)
    assert (losses[1], nlls[1]) == (0.0, 0.0)
    assert not logits[1].any()
    assert losses[[0, 2]].gt(0).all()
    assert logits[[0, 2]].any(dim=1).all()


def test_huge_logits_give_finite_losses():
    logits = torch.tensor([[3e4, -3e4, 0.0]])
    losses, _nlls = cross_entropy_(logits, torch.tensor([1]), smoothing=0.0)
    assert float(losses) == pytest.approx(6e4)
    torch.testing.assert_close(logits, torch.tensor([[1.0, -1.0, 0.0]]))


def test_half_precision_logits_have_fp32_losses():
    logits = torch.randn(N, V).bfloat16()
    exact, targets = logits.double(), torch.randint(V, (N,))
    losses, nlls = cross_entropy_(logits, targets, smoothing=0.1)
    expected = cross_entropy_(exact, targets, smoothing=0.1)
    assert losses.dtype == nlls.dtype == torch.float32
    assert logits.dtype == torch.bfloat16
    for found, value in zip((losses, nlls), expected, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits.double(), exact, rtol=2**-8, atol=1e-6)
