"""Multi-head attention: the formula, its masks and its widths."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tfm.config import TransformerConfig
from tfm.model.attention import AttentionMask, MultiHeadAttention, scaled_dot_product_attention

B, H, T, S, D_K, D_V = 2, 3, 4, 5, 6, 7


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    shapes = ((B, H, T, D_K), (B, H, S, D_K), (B, H, S, D_V))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def plain_attention(query, key, value, allowed):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    return scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value


def test_attention_is_the_softmax_of_scaled_products_times_values(qkv):
    everywhere = torch.ones(T, S, dtype=torch.bool)
    expected = plain_attention(*qkv, everywhere)
    torch.testing.assert_close(scaled_dot_product_attention(*qkv, AttentionMask()), expected)


def test_key_lengths_hide_the_keys_beyond_them(qkv):
    lengths = torch.tensor([2, 5])
    allowed = (torch.arange(S) < lengths[:, None])[:, None, None]
    found = scaled_dot_product_attention(*qkv, AttentionMask(key_lengths=lengths))
    torch.testing.assert_close(found, plain_attention(*qkv, allowed))


def test_a_causal_mask_hides_later_keys(qkv):
    query, key, value = qkv[0], qkv[1][:, :, :T], qkv[2][:, :, :T]
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    found = scaled_dot_product_attention(query, key, value, AttentionMask(causal=True))
    torch.testing.assert_close(found, plain_attention(query, key, value, allowed))


def test_a_mask_can_be_causal_and_padded_at_once(qkv):
    query, key, value = qkv[0], qkv[1][:, :, :T], qkv[2][:, :, :T]
    lengths = torch.tensor([1, 3])
    allowed = (
        torch.ones(T, T, dtype=torch.bool).tril()
        & (torch.arange(T) < lengths[:, None])[:, None, None]
    )
    mask = AttentionMask(key_lengths=lengths, causal=True)
    found = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(found, plain_attention(query, key, value, allowed))


def test_a_mask_without_limits_renders_as_none():
    assert AttentionMask().allowed(T, S) is None


def test_dropout_drops_weights_and_scales_the_rest_up():
    keys = 2000
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, keys, 4)
    torch.manual_seed(0)
    # Equal weights of 1/keys and one-hot values: the output is the weights themselves.
    value = torch.eye(keys)[None, None]
    weights = scaled_dot_product_attention(query, key, value, AttentionMask(), dropout=0.25)
    weights = weights.flatten() * keys
    assert weights.unique().tolist() == pytest.approx([0.0, 1 / 0.75], rel=1e-4)
    assert weights.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("d_k", "d_v"), [(None, None), (3, 5), (16, 2)])
def test_heads_project_to_any_width_and_back(d_k, d_v):
    config = TransformerConfig(d_model=8, num_heads=2, d_k=d_k, d_v=d_v)
    torch.manual_seed(0)
    attention = MultiHeadAttention(config).double().eval()
    nn.init.normal_(attention.input.bias)
    x = torch.randn(B, T, 8, dtype=torch.float64)
    found = attention.attend(*attention.queries_keys_values(x), AttentionMask())

    heads = []
    d_k, d_v = config.key_width, config.value_width
    w_q, w_k, w_v = torch.split(attention.input.weight, [2 * d_k, 2 * d_k, 2 * d_v])
    b_q, b_k, b_v = torch.split(attention.input.bias, [2 * d_k, 2 * d_k, 2 * d_v])
    for head in range(2):
        keys, values = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
        query = F.linear(x, w_q[keys], b_q[keys])
        key = F.linear(x, w_k[keys], b_k[keys])
        value = F.linear(x, w_v[values], b_v[values])
        heads.append(plain_attention(query, key, value, torch.ones(T, T, dtype=torch.bool)))
    expected = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(found, expected)


def test_separate_projections_equal_the_joint_one():
    torch.manual_seed(0)
    attention = MultiHeadAttention(TransformerConfig(d_model=8, num_heads=2, d_k=3, d_v=5))
    nn.init.normal_(attention.input.bias)
    x = torch.randn(B, T, 8)
    joint = attention.queries_keys_values(x)
    separate = (attention.queries(x), *attention.keys_values(x))
    for one, other in zip(joint, separate, strict=True):
        torch.testing.assert_close(one, other)
