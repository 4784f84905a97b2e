"""Label-smoothed cross-entropy against the formula and autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfm.training import loss

N, D, V = 7, 4, 5


def new_inputs(dtype=torch.float64, *, seed=0, num_rows=N):
    torch.manual_seed(seed)
    hidden_states = torch.randn(num_rows, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    return hidden_states, weight, torch.randint(V, (num_rows,))


def label_smoothed_cross_entropy(hidden_states, weight, targets, **settings):
    return loss.label_smoothed_cross_entropy(
        hidden_states, weight, targets, num_tokens=len(targets), **settings
    )


def plain_loss(hidden_states, weight, targets, smoothing):
    """The cross-entropy with the smoothed distribution of §5.4."""
    distribution = torch.full((len(targets), len(weight)), smoothing / (len(weight) - 1))
    distribution.scatter_(1, targets[:, None], 1 - smoothing)
    log_probs = (hidden_states @ weight.T).log_softmax(dim=-1)
    return -(distribution.to(hidden_states) * log_probs).sum()


def assert_same_gradients(found, expected, *inputs):
    ours, theirs = (torch.autograd.grad(each, inputs) for each in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_with_five_classes_the_right_one_has_0_9_and_each_other_0_025():
    log_probs = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]))
    # With identity weights, hidden states are the logits.
    smoothed, plain = label_smoothed_cross_entropy(
        log_probs[None], torch.eye(5), torch.tensor([2]), label_smoothing=0.1
    )
    by_hand = -0.9 * math.log(0.3) - 0.025 * sum(map(math.log, (0.1, 0.2, 0.15, 0.25)))
    assert float(smoothed) == pytest.approx(by_hand)
    assert float(plain) == pytest.approx(-math.log(0.3))


@given(smoothing=st.floats(0, 0.9), seed=st.integers(0, 99), product_rows=st.integers(1, 300))
def test_loss_and_gradients_equal_autograd_for_any_chunk_size(smoothing, seed, product_rows):
    hidden_states, weight, targets = new_inputs(seed=seed, num_rows=290)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "_CPU_CHUNK_ELEMENTS", V)  # then 64 rows
        patch.setattr(loss, "_MIN_CHUNK_ROWS", 1)
        patch.setattr(loss, "_MIN_PRODUCT_ROWS", product_rows)
        found, nll = label_smoothed_cross_entropy(
            hidden_states, weight, targets, label_smoothing=smoothing
        )
    expected = plain_loss(hidden_states, weight, targets, smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(nll, plain_loss(hidden_states, weight, targets, 0.0))
    # Divide, because training divides the loss by the number of tokens before backward.
    assert_same_gradients(found / 3, expected / 3, hidden_states, weight)


def test_a_bias_of_the_logits_is_part_of_the_loss_and_gets_a_gradient():
    hidden_states, weight, targets = new_inputs()
    bias = torch.randn(V, dtype=torch.float64, requires_grad=True)
    joined = loss.join_bias(hidden_states, weight, bias)
    found, _ = label_smoothed_cross_entropy(*joined, targets, label_smoothing=0.1)
    ones = torch.ones(N, 1, dtype=torch.float64)
    expected = plain_loss(
        torch.cat([hidden_states, ones], 1), torch.cat([weight, bias[:, None]], 1), targets, 0.1
    )
    torch.testing.assert_close(found, expected)
    assert_same_gradients(found, expected, hidden_states, weight, bias)


def test_bf16_loss_and_gradients_are_close():
    hidden_states, weight, targets = new_inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = label_smoothed_cross_entropy(hidden_states, weight, targets, label_smoothing=0.1)
    expected = plain_loss(hidden_states, weight, targets, 0.1)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0)
    inputs = (hidden_states, weight)
    both = (torch.autograd.grad(each, inputs) for each in (found, expected))
    for ours, theirs in zip(*both, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_no_gradients_are_computed_without_grad_mode(context, monkeypatch):
    hidden_states, weight, targets = new_inputs()
    allocated = []
    original = torch.zeros_like
    monkeypatch.setattr(
        torch, "zeros_like", lambda *args, **dtype: allocated.append(1) or original(*args, **dtype)
    )
    with context():
        label_smoothed_cross_entropy(hidden_states, weight, targets, label_smoothing=0.1)
    assert not allocated
    label_smoothed_cross_entropy(hidden_states, weight, targets, label_smoothing=0.1)
    assert allocated


def test_the_negative_log_likelihood_is_not_differentiable():
    smoothed, plain = label_smoothed_cross_entropy(*new_inputs(), label_smoothing=0.1)
    assert smoothed.requires_grad
    assert not plain.requires_grad


@pytest.mark.parametrize(("memory_mb", "rows"), [(1_000, [512]), (40, [256] * 2), (24, [128] * 4)])
def test_a_compiled_loss_has_equal_chunks_that_fit_into_memory(monkeypatch, memory_mb, rows):
    states, weight = torch.randn(512, 8), torch.randn(1_000, 8)  # 4.1 MB of logits and gradient
    targets, sizes = torch.randint(1_000, (512,)), []
    monkeypatch.setattr(loss, "device_memory_bytes", lambda _: memory_mb * 10**6)

    def compiled(chunk, *arguments):
        sizes.append(len(chunk))
        return loss._chunk_loss(chunk, *arguments)

    settings = {"label_smoothing": 0.1}
    found = label_smoothed_cross_entropy(states, weight, targets, chunk_loss=compiled, **settings)
    expected = label_smoothed_cross_entropy(states, weight, targets, **settings)
    torch.testing.assert_close(found, expected)
    assert sizes == rows
