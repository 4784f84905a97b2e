"""Attention of packed sentences on a CPU: batched products, softmax over the foremost axis.

Sentences are short, so attention costs little arithmetic and much overhead. torch's softmax over a
last axis of a dozen keys takes a vector's time for each row; with the keys foremost, each of a few
passes runs over all queries of all heads and sentences at once.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.packing import Packing
from tfm.backends.random_masks import RandomMasks, kept_scale


class SentenceAttention:
    """See `PackedAttention`.

    Args:
        masks: Draws which attention weights to keep.
    """

    def __init__(self, masks: RandomMasks) -> None:
        self._masks = masks

    def self_attention(
        self, projected: Tensor, packing: Packing, *, num_heads: int, causal: bool, dropout: float
    ) -> Tensor:
        """See `PackedAttention`."""
        attention_bias = _attention_bias(packing, packing, causal=causal)
        attended: Tensor = _SelfAttention.apply(  # type: ignore[no-untyped-call]
            projected, packing, attention_bias, num_heads, dropout, self._masks
        )
        return attended

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
        """See `PackedAttention`."""
        attention_bias = _attention_bias(queries, keys, causal=False)
        attended: Tensor = _CrossAttention.apply(  # type: ignore[no-untyped-call]
            query, key_value, queries, keys, attention_bias, num_heads, dropout, self._masks
        )
        return attended


def _attention_bias(queries: Packing, keys: Packing, *, causal: bool) -> Tensor | None:
    """[S', 1 or B', 1, 1 or T'] what is added to scores: -inf where a key must not be seen."""
    num_sentences, length = keys.padded_shape
    columns = torch.arange(length)
    if causal:
        # No token sees the padding after its sentence.
        allowed = (columns[:, None] <= torch.arange(queries.padded_shape[1]))[:, None, None]
    elif keys.num_tokens == num_sentences * length:
        return None
    else:
        # Sentences that fill up the grid have a key to see: nobody reads what comes of it.
        filled = F.pad(keys.lengths, (0, num_sentences - len(keys.lengths)), value=1)
        allowed = (columns[:, None] < filled)[:, :, None, None]
    return torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_bias: Tensor | None,
    num_heads: int,
    dropout: float,
    masks: RandomMasks,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention of all B · h heads at once.

    Args:
        query: [B · h, T, d_k].
        key: [B · h, S, d_k].
        value: [B · h, S, d_k].
        attention_bias: What is added to scores.
        num_heads: h.
        dropout: Probability of dropping an attention weight.
        masks: Draws which to keep.

    Returns:
        [B · h, T, d_k], the weights [S, B · h, T] and the mask, if there is dropout.
    """
    products = torch.bmm(key, query.mT).transpose(0, 1)
    scores = torch.mul(products, _scale(query), out=_contiguous_like(products))
    if attention_bias is not None:
        by_sentence = scores.view(len(scores), -1, num_heads, scores.size(-1))
        by_sentence.add_(attention_bias.to(scores.dtype))
    weights = scores.softmax(0)
    mask = masks.draw(weights, dropout) if dropout else None
    kept = weights if mask is None else torch.mul(weights, mask, out=scores)
    # What is read of the first argument, if it counts for nothing, is its shape.
    unread = value.new_empty(query.size(0), query.size(1), value.size(2))
    attended = torch.baddbmm(
        unread, kept.permute(1, 2, 0), value, beta=0, alpha=kept_scale(dropout)
    )
    return attended, weights, mask


def _attend_backward(
    grad: Tensor, saved: tuple[Any, ...], dropout: float, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Compute the gradients of query, key and value.

    Args:
        grad: [B · h, T, d_k] that of the result.
        saved: Query, key, value, weights and mask.
        dropout: Probability of dropping an attention weight.
        out: Where to write the three.
    """
    query, key, value, weights, mask = saved
    grad_query, grad_key, grad_value = out
    kept = weights if mask is None else weights * mask
    torch.bmm(kept.transpose(0, 1), grad, out=grad_value)
    products = torch.bmm(value, grad.mT).transpose(0, 1)
    if mask is None:
        grad_weights = products.contiguous()
    else:
        grad_value.mul_(kept_scale(dropout))
        grad_weights = torch.mul(products, mask, out=kept)
    # The scale of what is kept is a factor of all that follows.
    mean = (grad_weights * weights).sum(0)
    grad_scores = grad_weights.sub_(mean).mul_(weights).mul_(_scale(query) * kept_scale(dropout))
    torch.bmm(grad_scores.permute(1, 2, 0), key, out=grad_query)
    torch.bmm(grad_scores.transpose(0, 1), query, out=grad_key)


def _scale(query: Tensor) -> float:
    return 1 / math.sqrt(query.size(-1))


def _contiguous_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _to_heads(x: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """[num_rows, P · h · d] → [P, B' · h, T', d]; at padding stands what a spare row holds."""
    pieces = x.reshape(packing.num_rows * num_projections * num_heads, -1)
    heads = pieces.index_select(0, packing.head_rows(num_heads, num_projections))
    num_sentences, length = packing.padded_shape
    return heads.view(num_projections, num_sentences * num_heads, length, -1)


def _from_heads(heads: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """[P, B' · h, T', d] → [num_rows, P · h · d], spare rows zero."""
    pieces = heads.view(-1, heads.size(-1))
    x = pieces.index_select(0, packing.head_slots(num_heads, num_projections))
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
        query, key, value = _to_heads(projected, packing, num_heads, 3)
        attended, *rest = _attend(query, key, value, attention_bias, num_heads, dropout, masks)
        ctx.save_for_backward(query, key, value, *rest)
        ctx.packing, ctx.num_heads, ctx.dropout = packing, num_heads, dropout
        return _from_heads(attended, packing, num_heads, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        packing, num_heads = ctx.packing, ctx.num_heads
        [grad_heads] = _to_heads(grad, packing, num_heads, 1)
        parts = grad_heads.new_empty(3, *grad_heads.shape)
        _attend_backward(grad_heads, ctx.saved_tensors, ctx.dropout, (parts[0], parts[1], parts[2]))
        return _from_heads(parts, packing, num_heads, 3), None, None, None, None, None


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
        [query_heads] = _to_heads(query, queries, num_heads, 1)
        key, value = _to_heads(key_value, keys, num_heads, 2)
        attended, *rest = _attend(
            query_heads, key, value, attention_bias, num_heads, dropout, masks
        )
        ctx.save_for_backward(query_heads, key, value, *rest)
        ctx.queries, ctx.keys, ctx.num_heads, ctx.dropout = queries, keys, num_heads, dropout
        return _from_heads(attended, queries, num_heads, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, num_heads, saved = ctx.queries, ctx.keys, ctx.num_heads, ctx.saved_tensors
        [grad_heads] = _to_heads(grad, queries, num_heads, 1)
        grad_query = torch.empty_like(grad_heads)
        parts = grad_heads.new_empty(2, *saved[1].shape)
        _attend_backward(grad_heads, saved, ctx.dropout, (grad_query, parts[0], parts[1]))
        return (
            _from_heads(grad_query[None], queries, num_heads, 1),
            _from_heads(parts, keys, num_heads, 2),
            *[None] * 6,
        )
