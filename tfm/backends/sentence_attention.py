"""Attention in packed batches on a CPU: batched matrix products, softmax over the first axis.

Sentences are short, so attention costs little arithmetic and much overhead. torch's softmax over a
last axis of a dozen keys takes a vector operation per row; with the keys on the first axis, each of
a few passes runs over all queries of all heads and sentences at once.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from tfm.backends.dropout import RandomMasks, keep_scale
from tfm.backends.packing import Packing
from tfm.backends.plain import PackedAttention


class SentenceAttention(PackedAttention):
    """Attention of each sentence, padded to `Packing.padded_shape`.

    Args:
        masks: Dropout masks of attention weights.
    """

    def __init__(self, masks: RandomMasks) -> None:
        self._masks = masks

    @override
    def self_attention(
        self, projected: Tensor, packing: Packing, *, num_heads: int, causal: bool, dropout: float
    ) -> Tensor:
        attention_bias = _attention_bias(packing, packing, causal=causal)
        attended: Tensor = _SelfAttention.apply(  # type: ignore[no-untyped-call]
            projected, packing, attention_bias, num_heads, dropout, self._masks
        )
        return attended

    @override
    def cross_attention(
        self,
        query: Tensor,
        key_value: Tensor,
        queries: Packing,
        keys: Packing,
        *,
        num_heads: int,
        dropout: float,
    ) -> Tensor:
        attention_bias = _attention_bias(queries, keys, causal=False)
        attended: Tensor = _CrossAttention.apply(  # type: ignore[no-untyped-call]
            query, key_value, queries, keys, attention_bias, num_heads, dropout, self._masks
        )
        return attended


def _attention_bias(queries: Packing, keys: Packing, *, causal: bool) -> Tensor | None:
    """Return what to add to scores: [S', 1 or B', 1, 1 or T'], -inf for hidden keys."""
    num_sentences, length = keys.padded_shape
    columns = torch.arange(length)
    if causal:
        # This hides the padding after a sentence from its tokens, too.
        visible = (columns[:, None] <= torch.arange(queries.padded_shape[1]))[:, None, None]
    elif keys.num_tokens == num_sentences * length:
        return None
    else:
        # Empty sentences see one key, to avoid NaN; their results are not used.
        lengths = F.pad(keys.lengths, (0, num_sentences - len(keys.lengths)), value=1)
        visible = (columns[:, None] < lengths)[:, :, None, None]
    return torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_bias: Tensor | None,
    num_heads: int,
    dropout: float,
    masks: RandomMasks,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the attention of all B · h heads at once.

    Args:
        query: [B · h, T, d_k].
        key: [B · h, S, d_k].
        value: [B · h, S, d_k].
        attention_bias: [S, 1 or B, 1, 1 or T] added to scores.
        num_heads: h.
        dropout: Probability of dropping an attention weight.
        masks: Dropout masks.

    Returns:
        [B · h, T, d_k], the weights [S, B · h, T] and the mask of weights, if there is dropout.
    """
    products = torch.bmm(key, query.mT).transpose(0, 1)
    scores = torch.empty_like(products, memory_format=torch.contiguous_format)
    torch.mul(products, _scale(query), out=scores)
    if attention_bias is not None:
        by_sentence = scores.view(len(scores), -1, num_heads, scores.size(-1))
        by_sentence.add_(attention_bias.to(scores.dtype))
    weights = scores.softmax(0)
    mask = masks.draw(weights, dropout) if dropout else None
    kept = weights if mask is None else torch.mul(weights, mask, out=scores)
    # With beta=0, baddbmm reads the shape of its first argument only.
    unread = value.new_empty(query.size(0), query.size(1), value.size(2))
    attended = torch.baddbmm(
        unread, kept.permute(1, 2, 0), value, beta=0, alpha=keep_scale(dropout)
    )
    return attended, weights, mask


def _attend_backward(
    grad: Tensor, saved: tuple[Any, ...], dropout: float, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Compute the gradients of query, key and value.

    Args:
        grad: [B · h, T, d_k] gradient of the result.
        saved: Query, key, value, weights and mask.
        dropout: Probability of dropping an attention weight.
        out: Tensors for the three gradients.
    """
    query, key, value, weights, mask = saved
    grad_query, grad_key, grad_value = out
    kept = weights if mask is None else weights * mask
    torch.bmm(kept.transpose(0, 1), grad, out=grad_value)
    products = torch.bmm(value, grad.mT).transpose(0, 1)
    if mask is None:
        grad_weights = products.contiguous()
    else:
        grad_value.mul_(keep_scale(dropout))
        grad_weights = torch.mul(products, mask, out=kept)
    # The scale of dropout is a common factor: apply it once, at the end.
    mean = (grad_weights * weights).sum(0)
    grad_scores = grad_weights.sub_(mean).mul_(weights).mul_(_scale(query) * keep_scale(dropout))
    torch.bmm(grad_scores.permute(1, 2, 0), key, out=grad_query)
    torch.bmm(grad_scores.transpose(0, 1), query, out=grad_key)


def _scale(query: Tensor) -> float:
    return 1 / math.sqrt(query.size(-1))


def _split_heads(x: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """Return heads of packed rows, padded: [num_rows, P · h · d] → [P, B' · h, T', d]."""
    vectors = x.reshape(packing.num_rows * num_projections * num_heads, -1)
    heads = vectors.index_select(0, packing.split_heads_indices(num_heads, num_projections))
    num_sentences, length = packing.padded_shape
    return heads.view(num_projections, num_sentences * num_heads, length, -1)


def _merge_heads(heads: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """Return packed rows, zeros in spare ones: [P, B' · h, T', d] → [num_rows, P · h · d]."""
    vectors = heads.view(-1, heads.size(-1))
    x = vectors.index_select(0, packing.merge_heads_indices(num_heads, num_projections))
    x = x.view(packing.num_rows, -1)
    x[packing.num_tokens :] = 0
    return x


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        packing: Packing,
        attention_bias: Tensor | None,
        num_heads: int,
        dropout: float,
        masks: RandomMasks,
    ) -> Tensor:
        query, key, value = _split_heads(projected, packing, num_heads, 3)
        attended, *weights_and_mask = _attend(
            query, key, value, attention_bias, num_heads, dropout, masks
        )
        ctx.save_for_backward(query, key, value, *weights_and_mask)
        ctx.packing, ctx.num_heads, ctx.dropout = packing, num_heads, dropout
        return _merge_heads(attended, packing, num_heads, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        packing, num_heads = ctx.packing, ctx.num_heads
        [grad_heads] = _split_heads(grad, packing, num_heads, 1)
        grads = grad_heads.new_empty(3, *grad_heads.shape)
        _attend_backward(grad_heads, ctx.saved_tensors, ctx.dropout, (grads[0], grads[1], grads[2]))
        return _merge_heads(grads, packing, num_heads, 3), None, None, None, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key_value: Tensor,
        queries: Packing,
        keys: Packing,
        attention_bias: Tensor | None,
        num_heads: int,
        dropout: float,
        masks: RandomMasks,
    ) -> Tensor:
        [query_heads] = _split_heads(query, queries, num_heads, 1)
        key, value = _split_heads(key_value, keys, num_heads, 2)
        attended, *weights_and_mask = _attend(
            query_heads, key, value, attention_bias, num_heads, dropout, masks
        )
        ctx.save_for_backward(query_heads, key, value, *weights_and_mask)
        ctx.queries, ctx.keys, ctx.num_heads, ctx.dropout = queries, keys, num_heads, dropout
        return _merge_heads(attended, queries, num_heads, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, num_heads, saved = ctx.queries, ctx.keys, ctx.num_heads, ctx.saved_tensors
        [grad_heads] = _split_heads(grad, queries, num_heads, 1)
        grad_query = torch.empty_like(grad_heads)
        grads = grad_heads.new_empty(2, *saved[1].shape)
        _attend_backward(grad_heads, saved, ctx.dropout, (grad_query, grads[0], grads[1]))
        return (
            _merge_heads(grad_query[None], queries, num_heads, 1),
            _merge_heads(grads, keys, num_heads, 2),
            *[None] * 6,
        )
