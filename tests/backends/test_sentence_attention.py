"""Attention in packed batches on a CPU, against attention of one sentence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.backends.sentence_attention import HeadsLayout, RandomMasks, SentenceHeads, keep_scale
from tfm.model.attention import Heads, attention
from tfm.model.masks import AttentionMask
from tfm.model.packing import Packing

H, D = 2, 3
LENGTHS = [[4, 4, 4], [5, 1, 3], [1], [2, 7]]


def attend(projections, queries, keys, *, seed=0, **settings):
    masks = RandomMasks()
    masks.seed(seed)
    heads = SentenceHeads(Heads(H, [H * D] * 3, **settings), masks)
    return heads(projections, queries, keys, None)


def new_packing(lengths):
    return Packing(torch.tensor(lengths), sum(lengths) + 2)


def random_rows(packing, width, seed):
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(packing.num_rows, width, dtype=torch.float64, generator=random)
    return rows.requires_grad_()


def split_heads(rows):
    """Split heads: [T, h · d] → [1, h, T, d]."""
    return rows.view(len(rows), H, D).transpose(0, 1)[None]


def attend_by_sentence(query, key, value, queries, keys, *, causal):
    sentences = [
        torch.split(rows[: packing.num_tokens], packing.lengths.tolist())
        for rows, packing in ((query, queries), (key, keys), (value, keys))
    ]
    attended = [
        attention(*map(split_heads, sentence), AttentionMask(causal=causal))[0]
        .transpose(0, 1)
        .flatten(1)
        for sentence in zip(*sentences, strict=True)
    ]
    return torch.cat(attended)


def assert_same_gradients(found, expected, packing, *inputs):
    """Compare outputs, zero in spare rows, and the gradients of a weighted sum of outputs."""
    assert not found[packing.num_tokens :].any()
    found = found[: packing.num_tokens]
    torch.testing.assert_close(found, expected)
    output_weights = torch.randn(
        found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(9)
    )
    for ours, theirs in zip(
        torch.autograd.grad((found * output_weights).sum(), inputs),
        torch.autograd.grad((expected * output_weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_each_sentence_attends_to_itself(lengths, causal):
    packing = new_packing(lengths)
    projected = random_rows(packing, 3 * H * D, seed=1)
    found = attend([projected], packing, packing, causal=causal, dropout=0.0)
    projections = projected.split(H * D, dim=-1)
    expected = attend_by_sentence(*projections, packing, packing, causal=causal)
    assert_same_gradients(found, expected, packing, projected)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("source_lengths", [[1, 6, 2]], ids=str)
def test_each_sentence_attends_to_its_source(lengths, source_lengths):
    targets, sources = new_packing(lengths), new_packing(source_lengths[: len(lengths)])
    query, key_value = random_rows(targets, H * D, seed=1), random_rows(sources, 2 * H * D, seed=2)
    found = attend([query, key_value], targets, sources, causal=False, dropout=0.0)
    key, value = key_value.split(H * D, dim=-1)
    expected = attend_by_sentence(query, key, value, targets, sources, causal=False)
    assert_same_gradients(found, expected, targets, query, key_value)


def test_content_of_spare_rows_does_not_matter():
    packing = new_packing([5, 1, 3])
    projected = random_rows(packing, 3 * H * D, seed=1).detach()
    results = []
    for spare in (0.0, 1e6):
        projected[packing.num_tokens :] = spare
        leaf = projected.clone().requires_grad_()
        found = attend([leaf], packing, packing, causal=False, dropout=0.5)
        results.append((found, *torch.autograd.grad(found.square().sum(), leaf)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_gradients_with_dropout_pass_the_numerical_check():
    packing = new_packing([3, 2])
    source = new_packing([2, 4])
    projected = random_rows(packing, 3 * H * D, seed=1)
    key_value = random_rows(source, 2 * H * D, seed=2)

    def self_attention(projected):
        found = attend([projected], packing, packing, causal=True, dropout=0.4, seed=7)
        return found[: packing.num_tokens]

    def cross_attention(query, key_value):
        found = attend([query, key_value], packing, source, causal=False, dropout=0.4, seed=7)
        return found[: packing.num_tokens]

    query = random_rows(packing, H * D, seed=3)

    assert torch.autograd.gradcheck(self_attention, projected)
    assert torch.autograd.gradcheck(cross_attention, (query, key_value))


def test_dropout_drops_attention_weights_and_keeps_their_mean():
    """With equal scores and values of 1, an output is the scaled fraction of kept weights."""
    packing = Packing(torch.full((200,), 50), 200 * 50 + 1)
    projected = torch.zeros(packing.num_rows, 3 * H * D)
    projected[:, 2 * H * D :] = 1
    found = attend([projected], packing, packing, causal=False, dropout=0.1)
    heads = found[: packing.num_tokens].view(-1, H, D)
    assert torch.equal(heads[..., :1].expand_as(heads), heads)  # a weight is dropped as a whole
    assert float(heads.mean()) == pytest.approx(1.0, abs=0.003)
    num_kept = heads[..., 0] * 50 / keep_scale(0.1)
    torch.testing.assert_close(num_kept, num_kept.round(), rtol=0, atol=1e-3)
    assert len(num_kept.round().unique()) > 5


def test_bf16_is_close_to_the_exact_result():
    packing = new_packing([9, 30, 17])
    projected = random_rows(packing, 3 * H * D, seed=1)
    exact = attend([projected], packing, packing, causal=True, dropout=0.2)
    [exact_grad] = torch.autograd.grad(exact.sum(), projected)
    rounded = projected.detach().bfloat16().requires_grad_()
    found = attend([rounded], packing, packing, causal=True, dropout=0.2)
    [grad] = torch.autograd.grad(found.sum(), rounded)
    assert found.dtype == grad.dtype == torch.bfloat16
    found, exact = found.detach(), exact.detach()
    assert float((found - exact).norm() / exact.norm()) < 0.01
    assert float((grad - exact_grad).norm() / exact_grad.norm()) < 0.02


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 3))
def test_merging_heads_inverts_splitting_them(lengths, num_heads, num_projections):
    packing = new_packing(lengths)
    layout = HeadsLayout(packing, num_heads, num_projections)
    vectors = torch.arange(packing.num_rows * num_projections * num_heads)
    heads = vectors[layout.split_indices]
    merged = heads[layout.merge_indices].view(packing.num_rows, -1)
    assert torch.equal(
        merged[: packing.num_tokens].flatten(), vectors.view_as(merged)[:-2].flatten()
    )
    # The axes of heads are projections, sentences, heads and positions.
    num_sentences, length = layout.num_sentences, layout.length
    assert 0 <= num_sentences - len(lengths) < 8
    assert 0 <= length - max(lengths) < 4
    padded = torch.full((num_sentences, 1, length), packing.num_rows - 1)
    padded[: len(lengths), 0, : max(lengths)] = packing.pad_indices.view(len(lengths), -1)
    padded *= num_projections * num_heads
    for index, projection in enumerate(
        heads.view(num_projections, num_sentences, num_heads, length)
    ):
        offsets = index * num_heads + torch.arange(num_heads)[:, None]
        assert torch.equal(projection, padded + offsets)
