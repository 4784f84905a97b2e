"""Spans and the reference of packed attention: sentences are separate, padding is ignored."""

import math

import pytest
import torch
import torch.nn.functional as F
from plain_kernels import keep_mask, packed_attention

from tfm.backends.dropout import keep_scale
from tfm.backends.packing import attention_spans

H, D = 2, 4
LENGTHS = [3, 5, 0, 1, 4]
KEY_LENGTHS = [2, 6, 0, 3, 1]


def offsets(lengths, *, unused=2):
    """Return the offsets of sentences, with capacity for more of them."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0), *[sum(lengths)] * unused]).int()


def new_spans(lengths, key_lengths=None, *, spare=3, causal=False):
    key_lengths = key_lengths or lengths
    return attention_spans(
        offsets(lengths),
        offsets(key_lengths),
        num_queries=sum(lengths) + spare,
        num_keys=sum(key_lengths) + spare,
        causal=causal,
    )


def random_heads(num_rows, *, seed, num_projections=None):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, *([num_projections] if num_projections else []), H, D)
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def split_sentences(packed, lengths):
    return torch.split(packed[: sum(lengths)], lengths)


@pytest.mark.parametrize("key_lengths", [LENGTHS, KEY_LENGTHS])
def test_each_sentence_attends_to_itself_only(key_lengths):
    query = random_heads(sum(LENGTHS) + 3, seed=0)
    key, value = (random_heads(sum(key_lengths) + 3, seed=seed) for seed in (1, 2))
    attended = packed_attention([query, key, value], new_spans(LENGTHS, key_lengths))
    sentences = (
        split_sentences(x, lengths)
        for x, lengths in ((query, LENGTHS), (key, key_lengths), (value, key_lengths))
    )
    expected = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in sentence)).transpose(0, 1)
        for sentence in zip(*sentences, strict=True)
    ]
    torch.testing.assert_close(attended[: sum(LENGTHS)], torch.cat(expected))
    assert not attended[sum(LENGTHS) :].any()


def test_padding_affects_neither_results_nor_gradients():
    num_rows = sum(LENGTHS) + 3
    x = [random_heads(num_rows, seed=seed) for seed in range(3)]
    poisoned = [leaf.detach().clone().requires_grad_() for leaf in x]
    for leaf in poisoned:
        leaf.data[sum(LENGTHS) :] = 1e6
    results = [packed_attention(leaves, new_spans(LENGTHS)) for leaves in (x, poisoned)]
    torch.testing.assert_close(*results)
    for grad in torch.autograd.grad(results[1].square().sum(), poisoned):
        assert not grad[sum(LENGTHS) :].any()
        assert grad[: sum(LENGTHS)].isfinite().all()


@pytest.mark.parametrize(
    ("causal", "expected"),
    [
        (True, [(0, 1), (0, 2), (0, 3), (3, 4), (3, 5)]),
        (False, [(0, 3), (0, 3), (0, 3), (3, 5), (3, 5)]),
    ],
)
def test_sentence_and_causal_mask_limit_the_span_of_a_token(causal, expected):
    spans = new_spans([3, 2], spare=1, causal=causal)
    assert [tuple(pair) for pair in spans.keys.tolist()] == [*expected, (0, 0)]


@pytest.mark.parametrize("causal", [False, True])
def test_spans_of_queries_are_the_transposed_spans_of_keys(causal):
    spans = new_spans(LENGTHS, causal=causal)
    rows = torch.arange(sum(LENGTHS) + 3)
    visible_keys = (rows >= spans.keys[:, :1]) & (rows < spans.keys[:, 1:])
    visible_queries = (rows >= spans.queries[:, :1]) & (rows < spans.queries[:, 1:])
    assert torch.equal(visible_keys, visible_queries.T)


def test_dropout_drops_and_scales_weights_after_the_softmax():
    num_rows = sum(LENGTHS) + 3
    query, key, value = (random_heads(num_rows, seed=seed) for seed in range(3))
    spans, seed = new_spans(LENGTHS, causal=True), torch.tensor([11])
    attended = packed_attention([query, key, value], spans, dropout=0.4, seed=seed)
    rows = torch.arange(num_rows)
    visible = (rows >= spans.keys[:, :1]) & (rows < spans.keys[:, 1:])
    keep = keep_mask(seed, num_streams=H, num_rows=num_rows, num_columns=num_rows, dropout=0.4)
    for head in range(H):
        scores = query[:, head] @ key[:, head].T / math.sqrt(D)
        sums = scores.exp().where(visible, 0.0).sum(dim=1, keepdim=True)
        weights = (scores.exp() / sums).where(visible & keep[head], 0.0) * keep_scale(0.4)
        real = slice(0, sum(LENGTHS))
        torch.testing.assert_close(attended[real, head], (weights @ value[:, head])[real])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_pass_the_numerical_check(dropout):
    spans, seed = new_spans(LENGTHS, spare=1, causal=True), torch.tensor([3])
    x = tuple(random_heads(sum(LENGTHS) + 1, seed=seed) for seed in range(3))
    assert torch.autograd.gradcheck(
        lambda *leaves: packed_attention(leaves, spans, dropout=dropout, seed=seed), x
    )


def test_joint_projections_attend_as_separate_ones():
    num_rows = sum(LENGTHS) + 3
    projected = random_heads(num_rows, seed=0, num_projections=3)
    spans, seed = new_spans(LENGTHS, causal=True), torch.tensor([3])
    torch.testing.assert_close(
        packed_attention([projected], spans, dropout=0.2, seed=seed),
        packed_attention(projected.unbind(1), spans, dropout=0.2, seed=seed),
    )
    key_value = random_heads(sum(KEY_LENGTHS) + 3, seed=1, num_projections=2)
    spans, query = new_spans(LENGTHS, KEY_LENGTHS), projected[:, 0]
    torch.testing.assert_close(
        packed_attention([query, key_value], spans, dropout=0.2, seed=seed),
        packed_attention([query, *key_value.unbind(1)], spans, dropout=0.2, seed=seed),
    )
