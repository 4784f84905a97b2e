"""Attention in packed batches on a CPU: batched matrix products, softmax over the first axis.

Masks of dropout are drawn with probabilities that are multiples of 2⁻¹⁶.

Sentences are short, so attention costs little arithmetic and much overhead. torch's softmax over a
last axis of a dozen keys takes a vector operation per row; with the keys on the first axis, each of
a few passes runs over all queries of all heads and sentences at once.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from tfm.model.attention import Heads
from tfm.model.packing import Layout, Packing

_NUM_LEVELS = 1 << 16
# Sentences and positions of padded heads are multiples of these.
_SENTENCES_MULTIPLE, _LENGTH_MULTIPLE = 8, 4
_NUM_LAYOUTS = 4  # kept: of self-attention and cross-attention, of sources and targets


def drop_threshold(dropout: float) -> int:
    """Return the threshold below which uniform unsigned 16-bit numbers mean "drop"."""
    threshold = round(dropout * _NUM_LEVELS)
    if not 0 <= threshold < _NUM_LEVELS:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    return threshold


def keep_scale(dropout: float) -> float:
    """Return the inverse of the exact probability of keeping an element."""
    return _NUM_LEVELS / (_NUM_LEVELS - drop_threshold(dropout))


class RandomMasks:
    """Masks of dropout on a CPU: one 64-bit number of SFC64 decides four elements.

    torch draws one element at a time from a Mersenne twister, in one thread.
    """

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Restart the generator; equal seeds draw equal masks."""
        self._generator = np.random.SFC64(seed)

    def draw(self, x: Tensor, dropout: float) -> Tensor:
        """Return a contiguous mask: 1 for each element to keep, 0 for each to drop.

        Args:
            x: Tensor of any shape, which gives the mask its shape and dtype.
            dropout: Probability of dropping an element.
        """
        raw = self._generator.random_raw(-(-x.numel() // 4))
        draws = torch.from_numpy(raw.view(np.int16))[: x.numel()].view(x.shape)
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        # torch compares signed 16-bit numbers.
        return torch.ge(draws, drop_threshold(dropout) - _NUM_LEVELS // 2, out=mask)


class SentenceHeads(Heads):
    """Attention in packed batches by batched products, if heads are dot products of equal width."""

    def __init__(self, heads: Heads, masks: RandomMasks) -> None:
        super().__init__(**heads.arguments())
        self._masks = masks

    @override
    def forward(
        self,
        projections: Sequence[Tensor],
        queries: Layout,
        keys: Layout,
        additive_weight: Tensor | None,
    ) -> Tensor:
        has_usual_heads = additive_weight is None and len(set(self.widths)) == 1
        if not has_usual_heads or self.window is not None or not isinstance(queries, Packing):
            return super().forward(projections, queries, keys, additive_weight)
        settings = (self.num_heads, self.causal, self.active_dropout, self._masks)
        attended: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            queries, keys, *settings, *projections
        )
        return attended


class _Attention(torch.autograd.Function):
    """Attention of all heads at once, from each token to its sentence or the source of its pair.

    Projections are joint queries, keys and values [num_rows, 3 · h · d]; or queries
    [num_rows, h · d] and joint keys and values [num_rows of the keys, 2 · h · d].

    Shapes: query and result are [B · h, T, d], key and value [B · h, S, d], weights [S, B · h, T],
    where B, S and T are rounded up.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Packing,
        keys: Packing,
        num_heads: int,
        causal: bool,
        dropout: float,
        masks: RandomMasks,
        *projections: Tensor,
    ) -> Tensor:
        if len(projections) == 1:
            query, key, value = _split_heads(projections[0], queries, num_heads, 3)
        else:
            [query] = _split_heads(projections[0], queries, num_heads, 1)
            key, value = _split_heads(projections[1], keys, num_heads, 2)
        products = torch.bmm(key, query.mT).transpose(0, 1)
        scores = torch.empty_like(products, memory_format=torch.contiguous_format)
        torch.mul(products, _scale(query), out=scores)
        attention_bias = _attention_bias(queries, keys, causal=causal)
        if attention_bias is not None:
            by_sentence = scores.view(len(scores), -1, num_heads, scores.size(-1))
            by_sentence.add_(attention_bias.to(scores.dtype))
        weights = scores.softmax(0)
        mask = masks.draw(weights, dropout) if dropout else None
        kept = weights if mask is None else torch.mul(weights, mask, out=scores)
        # With beta=0, baddbmm reads the shape of its first argument only.
        unread = torch.empty_like(query)
        attended = torch.baddbmm(
            unread, kept.permute(1, 2, 0), value, beta=0, alpha=keep_scale(dropout)
        )
        ctx.save_for_backward(query, key, value, weights, mask)
        ctx.queries, ctx.keys, ctx.num_heads, ctx.dropout = queries, keys, num_heads, dropout
        ctx.num_joint = 4 - len(projections)  # projections in the last tensor
        return _merge_heads(attended, queries, num_heads, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        [grad] = _split_heads(grad, ctx.queries, ctx.num_heads, 1)
        joint_grads = grad.new_empty(ctx.num_joint, *key.shape)
        grad_key, grad_value = joint_grads[-2], joint_grads[-1]
        grad_query = joint_grads[0] if ctx.num_joint == 3 else torch.empty_like(grad)
        kept = weights if mask is None else weights * mask
        torch.bmm(kept.transpose(0, 1), grad, out=grad_value)
        products = torch.bmm(value, grad.mT).transpose(0, 1)
        if mask is None:
            grad_weights = products.contiguous()
        else:
            grad_value.mul_(keep_scale(ctx.dropout))
            grad_weights = torch.mul(products, mask, out=kept)
        # Dropout's scale is a common factor: apply it once, at the end.
        mean = (grad_weights * weights).sum(0)
        grad_scores = grad_weights.sub_(mean).mul_(weights)
        grad_scores.mul_(_scale(query) * keep_scale(ctx.dropout))
        torch.bmm(grad_scores.permute(1, 2, 0), key, out=grad_query)
        torch.bmm(grad_scores.transpose(0, 1), query, out=grad_key)
        grads = [_merge_heads(joint_grads, ctx.keys, ctx.num_heads, ctx.num_joint)]
        if ctx.num_joint == 2:
            grads.insert(0, _merge_heads(grad_query[None], ctx.queries, ctx.num_heads, 1))
        return *[None] * 6, *grads


class HeadsLayout:
    """How the heads of packed sentences lie in padded batches [P, B', h, T'].

    The numbers of sentences B' and positions T' are rounded up: for each new shape, oneDNN takes
    time to prepare and keeps memory.

    Args:
        packing: The layout of the rows, on the CPU.
        num_heads: h.
        num_projections: P of a row, such as query, key and value.
    """

    def __init__(self, packing: Packing, num_heads: int, num_projections: int) -> None:
        self._packing = packing
        self._num_heads, self._num_projections = num_heads, num_projections
        self.num_sentences, self.length = padded_shape(packing)

    @classmethod
    @functools.lru_cache(maxsize=_NUM_LAYOUTS)
    def of(cls, packing: Packing, num_heads: int, num_projections: int) -> "HeadsLayout":
        """Return a layout, which all layers share."""
        return cls(packing, num_heads, num_projections)

    @functools.cached_property
    def split_indices(self) -> Tensor:
        """[P · B' · h · T'] index of each vector among the num_rows · P · h of packed rows."""
        packing = self._packing
        rows = torch.full((self.num_sentences, 1, self.length), packing.num_rows - 1)
        padded_indices = packing.sentences * self.length + packing.positions[: packing.num_tokens]
        rows.view(-1)[padded_indices] = torch.arange(packing.num_tokens)
        first = rows * (self._num_projections * self._num_heads)
        vectors = torch.arange(self._num_projections * self._num_heads)
        return (first + vectors.view(self._num_projections, 1, self._num_heads, 1)).flatten()

    @functools.cached_property
    def merge_indices(self) -> Tensor:
        """[num_rows · P · h] the inverse of `split_indices`, undefined for spare rows."""
        packing = self._packing
        first = torch.zeros(packing.num_rows, self._num_heads, dtype=torch.int64)
        heads = packing.sentences[:, None] * self._num_heads + torch.arange(self._num_heads)
        first[: packing.num_tokens] = heads * self.length
        first += packing.positions[:, None]
        stride = self.num_sentences * self._num_heads * self.length
        projections = torch.arange(self._num_projections) * stride
        return (first[:, None, :] + projections[:, None]).flatten()


def padded_shape(packing: Packing) -> tuple[int, int]:
    """Return the numbers of sentences B' and positions T' of padded heads."""
    return (
        -(-len(packing.lengths) // _SENTENCES_MULTIPLE) * _SENTENCES_MULTIPLE,
        -(-packing.longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE,
    )


def _attention_bias(queries: Packing, keys: Packing, *, causal: bool) -> Tensor | None:
    """Return the bias of the scores [S', B', 1, T'], -inf for hidden keys; B' or T' may be 1."""
    num_sentences, length = padded_shape(keys)
    columns = torch.arange(length)
    if causal:
        # This hides the padding after a sentence from its tokens, too.
        visible = (columns[:, None] <= torch.arange(padded_shape(queries)[1]))[:, None, None]
    elif keys.num_tokens == num_sentences * length:
        return None
    else:
        # Empty sentences see one key, to avoid NaN; their results are not used.
        lengths = F.pad(keys.lengths, (0, num_sentences - len(keys.lengths)), value=1)
        visible = (columns[:, None] < lengths)[:, :, None, None]
    return torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)


def _scale(query: Tensor) -> float:
    return 1 / math.sqrt(query.size(-1))


def _split_heads(x: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """Return heads of packed rows, padded: [num_rows, P · h · d] → [P, B' · h, T', d]."""
    layout = HeadsLayout.of(packing, num_heads, num_projections)
    vectors = x.reshape(packing.num_rows * num_projections * num_heads, -1)
    heads = vectors.index_select(0, layout.split_indices)
    return heads.view(num_projections, layout.num_sentences * num_heads, layout.length, -1)


def _merge_heads(heads: Tensor, packing: Packing, num_heads: int, num_projections: int) -> Tensor:
    """Return packed rows, zeros in spare rows: [P, B' · h, T', d] → [num_rows, P · h · d]."""
    layout = HeadsLayout.of(packing, num_heads, num_projections)
    vectors = heads.view(-1, heads.size(-1))
    x = vectors.index_select(0, layout.merge_indices).view(packing.num_rows, -1)
    x[packing.num_tokens :] = 0
    return x
