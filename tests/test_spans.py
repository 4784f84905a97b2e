"""Attention of packed sentences: each sentence is by itself, and padding is nothing."""

import math

import pytest
import torch
import torch.nn.functional as F
from plain_kernels import (
    kept,
    packed_attention,
    packed_cross_attention,
    packed_self_attention,
)

from tfm.backends.philox import keep_scale
from tfm.backends.spans import attention_spans

H, D = 2, 4
LENGTHS = [3, 5, 0, 1, 4]
KEY_LENGTHS = [2, 6, 0, 3, 1]


def offsets(lengths, *, unused=2):
    """Where sentences begin, with room for more of them."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0), *[sum(lengths)] * unused]).int()


def spans_of(lengths, key_lengths=None, *, spare=3, **reach):
    key_lengths = key_lengths or lengths
    return attention_spans(
        offsets(lengths),
        offsets(key_lengths),
        num_queries=sum(lengths) + spare,
        num_keys=sum(key_lengths) + spare,
        **reach,
    )


def random_heads(num_rows, *, seed, parts=None):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, *([parts] if parts else []), H, D)
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def sentences(packed, lengths):
    return torch.split(packed[: sum(lengths)], lengths)


@pytest.mark.parametrize("key_lengths", [LENGTHS, KEY_LENGTHS])
def test_each_sentence_attends_as_if_it_were_alone(key_lengths):
    query = random_heads(sum(LENGTHS) + 3, seed=0)
    key, value = (random_heads(sum(key_lengths) + 3, seed=seed) for seed in (1, 2))
    attended = packed_attention(query, key, value, spans_of(LENGTHS, key_lengths))
    parts = (
        sentences(x, lengths)
        for x, lengths in ((query, LENGTHS), (key, key_lengths), (value, key_lengths))
    )
    alone = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in sentence)).transpose(0, 1)
        for sentence in zip(*parts, strict=True)
    ]
    torch.testing.assert_close(attended[: sum(LENGTHS)], torch.cat(alone))
    assert not attended[sum(LENGTHS) :].any()


def test_padding_neither_gives_nor_gets():
    num_rows = sum(LENGTHS) + 3
    x = [random_heads(num_rows, seed=seed) for seed in range(3)]
    poisoned = [part.detach().clone().requires_grad_() for part in x]
    for part in poisoned:
        part.data[sum(LENGTHS) :] = 1e6
    results = [packed_attention(*parts, spans_of(LENGTHS)) for parts in (x, poisoned)]
    torch.testing.assert_close(*results)
    for grad in torch.autograd.grad(results[1].square().sum(), poisoned):
        assert not grad[sum(LENGTHS) :].any()
        assert grad[: sum(LENGTHS)].isfinite().all()


@pytest.mark.parametrize(
    ("reach", "expected"),
    [
        ({"after": 0}, [(0, 1), (0, 2), (0, 3), (3, 4), (3, 5)]),
        ({"before": 1, "after": 0}, [(0, 1), (0, 2), (1, 3), (3, 4), (3, 5)]),
        ({"before": 1, "after": 1}, [(0, 2), (0, 3), (1, 3), (3, 5), (3, 5)]),
        ({}, [(0, 3), (0, 3), (0, 3), (3, 5), (3, 5)]),
    ],
)
def test_a_token_sees_what_its_sentence_its_order_and_its_window_leave(reach, expected):
    spans = spans_of([3, 2], spare=1, **reach)
    assert [tuple(pair) for pair in spans.keys.tolist()] == [*expected, (0, 0)]


@pytest.mark.parametrize("reach", [{}, {"after": 0}, {"before": 2, "after": 1}])
def test_who_is_seen_and_who_sees_are_the_same(reach):
    spans = spans_of(LENGTHS, **reach)
    places = torch.arange(sum(LENGTHS) + 3)
    seen = (places >= spans.keys[:, :1]) & (places < spans.keys[:, 1:])
    seeing = (places >= spans.queries[:, :1]) & (places < spans.queries[:, 1:])
    assert torch.equal(seen, seeing.T)


def test_a_window_between_different_axes_is_refused():
    with pytest.raises(ValueError, match="only self-attention has neighbors"):
        spans_of(LENGTHS, KEY_LENGTHS, spare=3, after=0)


def test_dropout_takes_from_the_softmax_and_scales_the_rest():
    num_rows = sum(LENGTHS) + 3
    query, key, value = (random_heads(num_rows, seed=seed) for seed in range(3))
    spans, seed = spans_of(LENGTHS, after=0), torch.tensor([11])
    attended = packed_attention(query, key, value, spans, dropout=0.4, seed=seed)
    places = torch.arange(num_rows)
    visible = (places >= spans.keys[:, :1]) & (places < spans.keys[:, 1:])
    stays = kept(seed, num_streams=H, num_rows=num_rows, num_columns=num_rows, dropout=0.4)
    for head in range(H):
        scores = query[:, head] @ key[:, head].T / math.sqrt(D)
        sums = scores.exp().where(visible, 0.0).sum(dim=1, keepdim=True)
        weights = (scores.exp() / sums).where(visible & stays[head], 0.0) * keep_scale(0.4)
        real = slice(0, sum(LENGTHS))
        torch.testing.assert_close(attended[real, head], (weights @ value[:, head])[real])


def test_dropout_needs_a_seed():
    x = random_heads(sum(LENGTHS) + 3, seed=0)
    with pytest.raises(ValueError, match="dropout needs a seed"):
        packed_attention(x, x, x, spans_of(LENGTHS), dropout=0.1)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(dropout):
    spans, seed = spans_of(LENGTHS, spare=1, after=0), torch.tensor([3])
    x = tuple(random_heads(sum(LENGTHS) + 1, seed=seed) for seed in range(3))
    assert torch.autograd.gradcheck(
        lambda *parts: packed_attention(*parts, spans, dropout=dropout, seed=seed), x
    )


def test_joined_projections_attend_as_separate_ones():
    num_rows = sum(LENGTHS) + 3
    projected = random_heads(num_rows, seed=0, parts=3)
    spans, seed = spans_of(LENGTHS, after=0), torch.tensor([3])
    torch.testing.assert_close(
        packed_self_attention(projected, spans, dropout=0.2, seed=seed),
        packed_attention(*projected.unbind(1), spans, dropout=0.2, seed=seed),
    )
    key_value = random_heads(sum(KEY_LENGTHS) + 3, seed=1, parts=2)
    spans, query = spans_of(LENGTHS, KEY_LENGTHS), projected[:, 0]
    torch.testing.assert_close(
        packed_cross_attention(query, key_value, spans, dropout=0.2, seed=seed),
        packed_attention(query, *key_value.unbind(1), spans, dropout=0.2, seed=seed),
    )
