"""The decoding of one sentence by itself, in as few operations as can be.

What a step of a few rows takes is not arithmetic: it is reading the weights, and calling torch. So
the projections of cross-attention are multiplied into the keys and values of the source, once:
with (x W_q) Kᵀ = x (W_q Kᵀ) and p (V W_o) = (p V) W_o, two products a layer need not be computed,
nor their weights be read. And hypotheses share one cache of all layers, to which each adds a row at
each step; which rows are its own past, a mask says.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.plain import PrepackedLinear

_FIRST_CAPACITY = 64

# LayerNorm, of rows.
Norm = Callable[[Tensor], Tensor]


def as_function(norm: nn.LayerNorm) -> Norm:
    """A norm that is no module: to call one takes longer than a few rows do."""
    return functools.partial(
        torch.layer_norm,
        normalized_shape=norm.normalized_shape,
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
    )


@dataclass(frozen=True, kw_only=True)
class SourceAttention:
    """Cross-attention of a layer to one source, its projections multiplied in (§3.2.2).

    Attributes:
        num_heads: h.
        score_weight: [h · S, d_model] what a row is multiplied by for its scores.
        score_bias: [h · S] what is added to them.
        value_weight: [h · S, d_model] what their softmax is multiplied by; with the bias, which
            the weights of each head, being one together, add h times a part.
    """

    num_heads: int
    score_weight: Tensor
    score_bias: Tensor
    value_weight: Tensor

    @classmethod
    def of(
        cls,
        key: Tensor,
        value: Tensor,
        *,
        query_weight: Tensor,
        query_bias: Tensor,
        output_weight: Tensor,
        output_bias: Tensor,
    ) -> "SourceAttention":
        """Multiply projections in.

        Args:
            key: [h, S, d_k].
            value: [h, S, d_v].
            query_weight: [h · d_k, d_model].
            query_bias: [h · d_k].
            output_weight: [d_model, h · d_v].
            output_bias: [d_model].
        """
        num_heads, _, key_width = key.shape
        scaled = key / math.sqrt(key_width)
        scores = scaled @ query_weight.to(key.dtype).view(num_heads, key_width, -1)
        bias = scaled @ query_bias.to(key.dtype).view(num_heads, key_width, 1)
        of_heads = output_weight.to(key.dtype).T.view(num_heads, value.size(2), -1)
        values = torch.baddbmm(output_bias.to(key.dtype) / num_heads, value, of_heads)
        return cls(
            num_heads=num_heads,
            score_weight=scores.flatten(0, 1),
            score_bias=bias.flatten(),
            value_weight=values.flatten(0, 1),
        )

    def add_to(self, x: Tensor, given: Tensor) -> Tensor:
        """X + the attention of rows [R, d_model] that are given."""
        scores = F.linear(given, self.score_weight, self.score_bias)
        weights = scores.view(x.size(0), self.num_heads, -1).softmax(dim=-1)
        return torch.addmm(x, weights.flatten(1), self.value_weight)


@dataclass(frozen=True, kw_only=True)
class SentenceLayer:
    """A decoder layer, made ready for one sentence.

    Attributes:
        norms: Around self-attention, cross-attention and the feed-forward network.
        norm_first: Whether they are before these, not after.
        projection: To queries, keys and values.
        output: Of self-attention.
        source: Cross-attention.
        inner: The first part of the feed-forward network.
        outer: Its second.
    """

    norms: tuple[Norm, Norm, Norm]
    norm_first: bool
    projection: PrepackedLinear
    output: PrepackedLinear
    source: SourceAttention
    inner: PrepackedLinear
    outer: PrepackedLinear


class SingleSentenceCache:
    """The KV cache of the hypotheses of a single sentence, and the layers that use it.

    Where the cache is full, the rows leave that are nobody's past any more.

    Attributes:
        layers: Made ready for the sentence.
        num_kept: Rows of the cache that are in use.

    Args:
        layers: Made ready for the sentence.
        num_heads: h.
        widths: h · d_k, h · d_k and h · d_v.
        round_up_rows: Return the number of rows to compute for a number of hypotheses.
    """

    def __init__(
        self,
        layers: Sequence[SentenceLayer],
        *,
        num_heads: int,
        widths: Sequence[int],
        round_up_rows: Callable[[int], int],
    ) -> None:
        self.layers = layers
        self._num_heads = num_heads
        self._widths = widths
        self._round_up_rows = round_up_rows
        self._num_hypotheses = 1
        self.num_kept = 0
        # [rows to compute, capacity] what is added to scores: -inf where a row is another
        # hypothesis' past, or nobody's; None if it is of the only one there has ever been.
        self._bias: Tensor | None = None
        self._others = torch.empty(0, 0)  # [K, K] the same of the rows of one step
        dtype = layers[0].source.score_weight.dtype
        self._use(torch.empty(len(layers), _FIRST_CAPACITY, sum(widths[1:]), dtype=dtype))

    def __deepcopy__(self, memo: object) -> "SingleSentenceCache":
        """The same past, which goes on independently; the layers do not change."""
        other = copy.copy(self)
        other._use(self._cache.clone())  # noqa: SLF001 - of its own class
        if self._bias is not None:
            other._bias = self._bias.clone()  # noqa: SLF001
        return other

    def step(self, x: Tensor) -> Tensor:
        """Decode the next position of all hypotheses.

        Args:
            x: [K, d_model] their embedded tokens.

        Returns:
            [K, d_model], before the last norm.
        """
        num_used = self._num_hypotheses
        bias = self._begin_step()
        start, end = self.num_kept - num_used, self.num_kept
        num_rows = self._round_up_rows(num_used)
        query_width, pair_width = self._widths[0], sum(self._widths[1:])
        if num_rows > num_used:
            x = F.pad(x, (0, 0, 0, num_rows - num_used))
        x = x.to(self._cache.dtype)
        heads = (1, num_rows, self._num_heads, -1)
        for layer, (rows, keys, values) in zip(self.layers, self._views, strict=True):
            norm, cross_norm, feed_norm = layer.norms
            projected = layer.projection(norm(x) if layer.norm_first else x, False)
            newest = projected.narrow(0, 0, num_used).narrow(1, query_width, pair_width)
            rows.narrow(0, start, num_used).copy_(newest)
            queries = projected.narrow(1, 0, query_width).to(x.dtype)
            attended = F.scaled_dot_product_attention(
                queries.view(heads).transpose(1, 2),
                keys.narrow(2, 0, end),
                values.narrow(2, 0, end),
                attn_mask=bias,
            )
            x = x + layer.output(attended.transpose(1, 2).reshape(num_rows, -1), False)
            if layer.norm_first:
                x = layer.source.add_to(x, cross_norm(x))
                x = x + layer.outer(layer.inner(feed_norm(x), True), False)
            else:
                x = norm(x)
                x = cross_norm(layer.source.add_to(x, x))
                x = feed_norm(x + layer.outer(layer.inner(x, True), False))
        return x[:num_used]

    def reorder(self, parents: Tensor) -> None:
        """Go on with hypotheses [K'] that continue these of the present ones."""
        before, self._num_hypotheses = self._num_hypotheses, len(parents)
        if self._bias is not None:
            kept = self._bias[:, : self.num_kept].index_select(0, parents)
        elif before == len(parents):  # there is one
            return
        else:
            kept = self._cache.new_zeros(len(parents), self.num_kept)
        self._hide(kept)

    def _begin_step(self) -> Tensor | None:
        """Give each hypothesis a row; return what its queries must not see."""
        start, num_new = self.num_kept, self._num_hypotheses
        if start + num_new > self._cache.size(1):
            self._make_room(num_new)
            start = self.num_kept
        self.num_kept += num_new
        if self._bias is None:
            return None
        self._bias[:num_new, start : self.num_kept] = self._others
        return self._bias[:, : self.num_kept]

    def _make_room(self, num_new: int) -> None:
        cache = self._cache[:, : self.num_kept]
        if self._bias is not None:
            bias = self._bias[: self._num_hypotheses, : self.num_kept]
            seen = (bias == 0).any(dim=0).nonzero()[:, 0]
            cache, bias = cache.index_select(1, seen), bias.index_select(1, seen)
        self.num_kept = cache.size(1)
        capacity = max(self._cache.size(1), 2 * (self.num_kept + num_new))
        larger = cache.new_empty(len(cache), capacity, cache.size(2))
        larger[:, : self.num_kept] = cache
        self._use(larger)
        if self._bias is not None:
            self._hide(bias)

    def _use(self, cache: Tensor) -> None:
        """Take a cache [layers, capacity, h · (d_k + d_v)], and make the views that steps use."""
        self._cache = cache
        views = []
        for rows in cache:
            each = rows.split(list(self._widths[1:]), dim=1)
            keys, values = (part.unflatten(1, (self._num_heads, -1)) for part in each)
            views.append((rows, keys.transpose(0, 1)[None], values.transpose(0, 1)[None]))
        self._views = views

    def _hide(self, kept: Tensor) -> None:
        """Take [K, rows of the cache] what is added to scores, with room for more."""
        capacity, num_rows = self._cache.size(1), self._round_up_rows(len(kept))
        if self._bias is None or self._bias.shape != (num_rows, capacity):
            # Spare queries see all at first, and always the first row: it is everybody's past.
            self._bias = kept.new_zeros(num_rows, capacity)
        self._bias[: len(kept), : self.num_kept] = kept
        if len(self._others) != len(kept):
            own = torch.eye(len(kept), dtype=torch.bool, device=kept.device)
            self._others = kept.new_zeros(own.shape).masked_fill_(~own, -math.inf)
