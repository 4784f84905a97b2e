"""Attention: the formula, its masks and its costs."""

import itertools
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tfm.model.additive import additive_scores
from tfm.model.attention import attention, attention_weights
from tfm.model.masks import AttentionMask

B, H, T, S, D_K, D_V = 2, 3, 4, 5, 6, 7


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    shapes = ((B, H, T, D_K), (B, H, S, D_K), (B, H, S, D_V))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def reference_attention(query, key, value, allowed):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [1, 3]])
def test_attention_is_the_softmax_of_scaled_products_times_values(qkv, lengths, causal):
    query, key, value = qkv[0], qkv[1][:, :, :T], qkv[2][:, :, :T]
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    key_lengths = None if lengths is None else torch.tensor(lengths)
    if lengths is not None:
        allowed = allowed & (torch.arange(T) < key_lengths[:, None])[:, None, None]
    found = attention(query, key, value, AttentionMask(key_lengths=key_lengths, causal=causal))
    torch.testing.assert_close(found, reference_attention(query, key, value, allowed))


def test_dropout_drops_weights_and_scales_the_others_up():
    keys = 2000
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, keys, 4)
    torch.manual_seed(0)
    # Equal weights of 1/keys and one-hot values: the output is the weights themselves.
    value = torch.eye(keys)[None, None]
    weights = attention(query, key, value, AttentionMask(), dropout=0.25)
    weights = weights.flatten() * keys
    assert weights.unique().tolist() == pytest.approx([0.0, 1 / 0.75], rel=1e-4)
    assert weights.mean() == pytest.approx(1.0, abs=0.05)


def reference_window(length, window, *, causal):
    """True where attention is allowed by definition: the r nearest keys, or the r last keys."""
    before = window - 1 if causal else (window - 1) // 2
    after = 0 if causal else window // 2
    rows = [[-before <= j - i <= after for j in range(length)] for i in range(length)]
    return torch.tensor(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 30])
@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("function", ["dot-product", "additive"])
def test_a_query_sees_exactly_the_keys_in_its_window(length, window, causal, function):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, B, H, length, D_K, dtype=torch.float64)
    weight = torch.randn(H, D_K, dtype=torch.float64) if function == "additive" else None
    mask = AttentionMask(causal=causal, window=window)
    found = attention(query, key, value, mask, additive_weight=weight)
    scores = query @ key.transpose(-1, -2) / math.sqrt(D_K)
    if weight is not None:
        scores = reference_additive_scores(query, key, weight)
    hidden = ~reference_window(length, window, causal=causal)
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
    torch.testing.assert_close(found, weights @ value)
    shown = attention_weights(query, key, mask.allowed(query, key), weight)
    torch.testing.assert_close(shown, weights)


def test_a_window_hides_padding_and_gives_finite_gradients():
    torch.manual_seed(0)
    window, longest = 3, 20
    lengths = torch.tensor([longest, 5])
    qkv = torch.randn(3, 2, H, longest, D_K, dtype=torch.float64, requires_grad=True)
    mask = AttentionMask(key_lengths=lengths, window=window)
    found = attention(*qkv, mask)
    unpadded = attention(*qkv[:, 1:, :, :5], AttentionMask(window=window))
    torch.testing.assert_close(found[1:, :, :5], unpadded)
    (gradient,) = torch.autograd.grad(found[1, :, :5].square().sum(), qkv)
    assert gradient.isfinite().all()
    assert gradient[:, 1, :, 5:].count_nonzero() == 0
    assert gradient[:, 0].count_nonzero() == 0


def reference_additive_scores(query, key, weight):
    scores = torch.empty(B, H, query.size(2), key.size(2), dtype=query.dtype)
    for b, h, i, j in itertools.product(*map(range, scores.shape)):
        scores[b, h, i, j] = weight[h] @ torch.tanh(query[b, h, i] + key[b, h, j])
    return scores


def test_additive_scores_in_chunks_have_the_same_values_and_gradients(qkv, monkeypatch):
    query, key, _ = qkv
    inputs = [query, key, torch.randn(H, D_K, dtype=torch.float64)]
    for tensor in inputs:
        tensor.requires_grad_()
    direction = torch.randn(B, H, T, S, dtype=torch.float64)
    whole = additive_scores(*inputs)
    gradients = torch.autograd.grad(whole, inputs, direction)
    monkeypatch.setattr("tfm.model.additive._CHUNK_ELEMENTS", key.numel())
    chunked = additive_scores(*inputs)
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(torch.autograd.grad(chunked, inputs, direction), gradients)
    torch.autograd.gradcheck(additive_scores, inputs)


def flops(function, *arguments, **named):
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*arguments, **named)
    return counter.get_total_flops()


def attention_flops(length, width, *, window=None, additive=False):
    """Count the operations of one head of self-attention, without its projections."""
    query = torch.zeros(1, 1, length, width)
    weight = torch.zeros(1, width) if additive else None
    mask = AttentionMask(window=window)
    # Operations inside fused kernels are not counted.
    with sdpa_kernel(SDPBackend.MATH):
        return flops(attention, query, query, query, mask, additive_weight=weight)


@pytest.mark.parametrize("kind", [{}, {"additive": True}], ids=["dot-product", "additive"])
def test_self_attention_costs_the_square_of_the_length_times_the_width(kind):
    # Vaswani et al. 2017, table 1: O(n² · d).
    once = attention_flops(64, 32, **kind)
    assert attention_flops(128, 32, **kind) == 4 * once
    assert attention_flops(64, 64, **kind) == 2 * once


@pytest.mark.parametrize("kind", [{}, {"additive": True}], ids=["dot-product", "additive"])
def test_restricted_self_attention_costs_window_times_length_times_width(kind):
    # Vaswani et al. 2017, table 1: O(r · n · d).
    once = attention_flops(256, 32, window=8, **kind)
    assert attention_flops(512, 32, window=8, **kind) == 2 * once
    assert attention_flops(256, 64, window=8, **kind) == 2 * once
    assert attention_flops(256, 32, window=16, **kind) == pytest.approx(2 * once, rel=0.05)
    assert once < attention_flops(256, 32, **kind) / 8
