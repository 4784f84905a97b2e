"""Multi-head attention: its widths, projections and cached keys."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tfm.config import TransformerConfig
from tfm.model.additive import additive_scores
from tfm.model.attention import MultiHeadAttention, attention
from tfm.model.cache import DecoderCache, keys_values, split_joint
from tfm.model.masks import AttentionMask
from tfm.model.packing import Padded

B, H, T, S, D_K = 2, 3, 4, 5, 6


@pytest.mark.parametrize(("d_k", "d_v"), [(None, None), (3, 5), (16, 2)])
def test_heads_may_have_any_width(d_k, d_v):
    config = TransformerConfig(d_model=8, num_heads=2, d_k=d_k, d_v=d_v)
    torch.manual_seed(0)
    module = MultiHeadAttention(config).double().eval()
    nn.init.normal_(module.input.bias)
    x = torch.randn(B, T, 8, dtype=torch.float64)
    query, key, value = split_joint(module.heads, module.input(x).flatten(0, 1), B)
    found = module(x, Padded(T))
    cached = module.output(DecoderCache.attend(query, key.mT, value, None, None))
    torch.testing.assert_close(cached, found.flatten(0, 1))

    heads = []
    d_k, d_v = config.key_width, config.value_width
    w_q, w_k, w_v = torch.split(module.input.weight, [2 * d_k, 2 * d_k, 2 * d_v])
    b_q, b_k, b_v = torch.split(module.input.bias, [2 * d_k, 2 * d_k, 2 * d_v])
    for head in range(2):
        keys, values = slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)
        query = F.linear(x, w_q[keys], b_q[keys])
        key = F.linear(x, w_k[keys], b_k[keys])
        value = F.linear(x, w_v[values], b_v[values])
        heads.append(attention(*(x[:, None] for x in (query, key, value)), AttentionMask())[:, 0])
    expected = module.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(found, expected)


def test_separate_projections_equal_the_joint_projection():
    torch.manual_seed(0)
    module = MultiHeadAttention(TransformerConfig(d_model=8, num_heads=2, d_k=3, d_v=5))
    nn.init.normal_(module.input.bias)
    x = torch.randn(B, T, 8)
    joint = split_joint(module.heads, module.input(x).flatten(0, 1), B)
    query = module.heads.to_heads(module.input.queries(x).flatten(0, 1), B)
    separate = (query, *keys_values(module, x))
    for one, other in zip(joint, separate, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("for_each_query", [True, False])
def test_cached_additive_attention_gives_hidden_keys_no_weight(for_each_query):
    torch.manual_seed(0)
    config = TransformerConfig(d_model=8, num_heads=H, d_k=D_K, d_v=D_K, attention="additive")
    module = MultiHeadAttention(config).double()
    query, key, value = (
        torch.randn(B, H, length, width, dtype=torch.float64)
        for length, width in ((T, D_K), (S, D_K), (S, D_K))
    )
    allowed = torch.rand(B, T if for_each_query else 1, S) < 0.5
    allowed[:, :, 2] = True
    hidden = torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)
    scores = additive_scores(query, key, module.additive_weight)
    weights = scores.masked_fill(~allowed[:, None], -math.inf).softmax(dim=-1)
    expected = (weights @ value).transpose(1, 2).reshape(B * T, H * D_K)
    found = DecoderCache.attend(query, key.mT, value, hidden, module.additive_weight)
    torch.testing.assert_close(found, expected)
