"""A faster decoder for a single sentence, as `CpuDecoder` uses it.

A step of a few rows spends its time on reading weights and calling torch, not on arithmetic. So the
projections of cross-attention are multiplied into the keys and values of the source once, as
(x W_q) Kᵀ = x (W_q Kᵀ) and p (V W_o) = (p V) W_o: each step saves two matrix products per layer.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.products_cpu import Linear
from tfm.model.attention import Heads, MultiHeadAttention
from tfm.model.cache import keys_values
from tfm.model.layers import DecoderLayer

_FIRST_CAPACITY = 64

# LayerNorm of rows [R, d_model].
Norm = Callable[[Tensor], Tensor]


def cache_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which keys or values x […] are cached: products convert bf16."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def decodes_alone(layer: DecoderLayer) -> bool:
    """Return whether a layer can be prepared: it has dot-product attention without a window."""
    attention = layer.self_attention
    return attention.additive_weight is None and attention.heads.window is None


def _as_function(norm: nn.LayerNorm) -> Norm:
    """Return a norm as a plain function: calling a module takes longer than a few rows do."""
    return functools.partial(
        torch.layer_norm,
        normalized_shape=norm.normalized_shape,
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
    )


@dataclass(frozen=True, kw_only=True)
class FoldedCrossAttention:
    """Cross-attention of a layer to one source, its projections multiplied in (§3.2.2)."""

    num_heads: int  # h
    score_weight: Tensor  # [h · S, d_model] weight of the linear map from rows to scores
    score_bias: Tensor  # [h · S] its bias
    # [h · S, d_model] projected values. They include 1/h of the output bias, because the
    # attention weights of each head sum to 1.
    value_weight: Tensor

    @classmethod
    def of(
        cls, attention: MultiHeadAttention, key: Tensor, value: Tensor
    ) -> "FoldedCrossAttention":
        """Multiply the projections into the keys [h, S, d_k] and values [h, S, d_v] of a source."""
        num_heads, _, key_width = key.shape
        query, output, dtype = attention.heads.widths[0], attention.output, key.dtype
        query_weight = attention.input.weight[:query].to(dtype).view(num_heads, key_width, -1)
        query_bias = attention.input.bias[:query].to(dtype).view(num_heads, key_width, 1)
        output_weight = output.weight.to(dtype).T.view(num_heads, value.size(2), -1)
        scaled = key / math.sqrt(key_width)
        values = torch.baddbmm(output.bias.to(dtype) / num_heads, value, output_weight)
        return cls(
            num_heads=num_heads,
            score_weight=(scaled @ query_weight).flatten(0, 1),
            score_bias=(scaled @ query_bias).flatten(),
            value_weight=values.flatten(0, 1),
        )

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return the residual [R, d_model] + the attention of rows x [R, d_model]."""
        scores = F.linear(x, self.score_weight, self.score_bias)
        weights = scores.view(x.size(0), self.num_heads, -1).softmax(dim=-1)
        return torch.addmm(residual, weights.flatten(1), self.value_weight)


@dataclass(frozen=True)
class SingleSentenceLayer:
    """A decoder layer that is prepared for one sentence."""

    norms: Sequence[Norm]  # of self-attention, cross-attention and the feed-forward network
    norm_first: bool  # whether norms come before their sub-layers (pre-norm)
    cross_attention: FoldedCrossAttention  # attention to the source
    projection: Linear  # self-attention's projection to queries, keys and values
    output: Linear  # self-attention's output projection
    inner: Linear  # the first linear map of the feed-forward network
    outer: Linear  # the second

    @classmethod
    def of(cls, layer: DecoderLayer, encoded: Tensor) -> "SingleSentenceLayer":
        """Prepare a layer, whose linear layers are prepacked, for one source [1, S, d_model]."""
        attention: Any = layer.self_attention
        feed_forward: Any = layer.feed_forward
        projected = keys_values(layer.cross_attention, encoded)
        key, value = (x[0].to(cache_dtype(x)) for x in projected)
        residuals = (
            layer.self_attention_residual,
            layer.cross_attention_residual,
            layer.feed_forward_residual,
        )
        linears = (attention.input, attention.output, feed_forward.inner, feed_forward.outer)
        return cls(
            [_as_function(residual.norm) for residual in residuals],
            residuals[0].norm_first,
            FoldedCrossAttention.of(layer.cross_attention, key, value),
            *(linear.prepacked for linear in linears),
        )


class SingleSentenceCache:
    """The KV cache of the hypotheses of a single sentence, and the layers that use it.

    All hypotheses share one cache. Each hypothesis appends a row per step, and a mask hides the
    rows of other hypotheses. When the cache is full, rows that are hidden from all are removed.

    Args:
        layers: The decoder layers, prepared for the sentence.
        heads: The heads of self-attention, which are the same in all layers.
        round_up_rows: Rounds the number of rows to compute up.
    """

    def __init__(
        self,
        layers: Sequence[SingleSentenceLayer],
        heads: Heads,
        round_up_rows: Callable[[int], int],
    ) -> None:
        self.layers = layers
        self.position = 0  # number of tokens so far
        self._num_heads, self._widths = heads.num_heads, heads.widths
        self._round_up_rows = round_up_rows
        self.num_hypotheses = 1  # K
        self.num_kept = 0  # rows of the cache that are in use
        # [rows to compute, capacity] added to scores: -inf where a row of the cache is hidden;
        # None while there has been only one hypothesis.
        self._bias: Tensor | None = None
        self._step_bias = torch.empty(0, 0)  # [K, K] the same for the rows that one step adds
        dtype = layers[0].cross_attention.score_weight.dtype
        self._set_cache(
            torch.empty(len(layers), _FIRST_CAPACITY, sum(self._widths[1:]), dtype=dtype)
        )

    def __deepcopy__(self, memo: object) -> "SingleSentenceCache":
        """Copy the hypotheses, which can continue independently, and share the layers."""
        clone = copy.copy(self)
        clone._set_cache(self._cache.clone())  # noqa: SLF001 - of the same class
        if self._bias is not None:
            clone._bias = self._bias.clone()  # noqa: SLF001
        return clone

    def step(self, x: Tensor) -> Tensor:
        """Decode the next position from embedded tokens [K, d_model] to [K, d_model].

        If K is 1, there may be several positions: [T, d_model].
        """
        num_used = len(x)
        bias = self._begin_step(num_used)
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
                x = layer.cross_attention.add_to(x, cross_norm(x))
                x = x + layer.outer(layer.inner(feed_norm(x), True), False)
            else:
                x = norm(x)
                x = cross_norm(layer.cross_attention.add_to(x, x))
                x = feed_norm(x + layer.outer(layer.inner(x, True), False))
        return x[:num_used]

    def reorder(self, rows: Tensor) -> None:
        """Replace the hypotheses by some of them [1, K']: see `DecodingState`."""
        [parents] = rows
        num_before, self.num_hypotheses = self.num_hypotheses, len(parents)
        if self._bias is not None:
            self._set_bias(self._bias[:, : self.num_kept].index_select(0, parents))
        elif num_before < len(parents):
            self._set_bias(self._cache.new_zeros(len(parents), self.num_kept))

    def _begin_step(self, num_new: int) -> Tensor | None:
        """Reserve rows; return the bias [rows to compute, num_kept]."""
        if self.num_kept + num_new > self._cache.size(1):
            self._compact(num_new)
        start = self.num_kept
        self.num_kept += num_new
        if num_new > self.num_hypotheses:  # positions of one hypothesis
            bias = self._cache.new_zeros(self._round_up_rows(num_new), self.num_kept)
            bias[:num_new, start:] = bias.new_full((num_new, num_new), -math.inf).triu(1)
            if self._bias is not None:
                bias[:num_new, :start] = self._bias[0, :start]
                self._bias[0, start : self.num_kept] = 0
            return bias
        if self._bias is None:
            return None
        self._bias[:num_new, start : self.num_kept] = self._step_bias
        return self._bias[:, : self.num_kept]

    def _compact(self, num_new: int) -> None:
        """Remove the rows that no hypothesis sees, and make room for at least `num_new` rows."""
        cache = self._cache[:, : self.num_kept]
        if self._bias is not None:
            bias = self._bias[: self.num_hypotheses, : self.num_kept]
            seen = (bias == 0).any(dim=0).nonzero()[:, 0]
            cache, bias = cache.index_select(1, seen), bias.index_select(1, seen)
        self.num_kept = cache.size(1)
        capacity = max(self._cache.size(1), 2 * (self.num_kept + num_new))
        larger = cache.new_empty(len(cache), capacity, cache.size(2))
        larger[:, : self.num_kept] = cache
        self._set_cache(larger)
        if self._bias is not None:
            self._set_bias(bias)

    def _set_cache(self, cache: Tensor) -> None:
        """Use a cache [layers, capacity, h · (d_k + d_v)], as views for the next steps."""
        self._cache = cache
        self._views = []
        for rows in cache:
            keys, values = (
                x.unflatten(1, (self._num_heads, -1)).transpose(0, 1)[None]
                for x in rows.split(self._widths[1:], dim=1)
            )
            self._views.append((rows, keys, values))

    def _set_bias(self, kept: Tensor) -> None:
        """Pad the attention bias [K, num_kept] to the computed rows and the cache's capacity."""
        capacity, num_rows = self._cache.size(1), self._round_up_rows(len(kept))
        if self._bias is None or self._bias.shape != (num_rows, capacity):
            # Spare queries always see the first row, which all hypotheses share.
            self._bias = kept.new_zeros(num_rows, capacity)
        self._bias[: len(kept), : self.num_kept] = kept
        if len(self._step_bias) != len(kept):
            own = torch.eye(len(kept), dtype=torch.bool, device=kept.device)
            self._step_bias = kept.new_zeros(own.shape).masked_fill_(~own, -math.inf)
