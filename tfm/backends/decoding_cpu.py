"""Decoding on a CPU: few distinct numbers of rows, and a single sentence by itself."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from tfm.backends.single_sentence import (
    SingleSentenceCache,
    SingleSentenceLayer,
    cache_dtype,
    decodes_alone,
)
from tfm.machine.compute import onednn_products
from tfm.model.cache import DecoderCache, DecodingState, StepRows
from tfm.model.transformer import Decoder

RoundUp = Callable[[int], int]

_VECTOR_SIZE = 16  # elements in fp32 of the vectors of AVX-512


class CpuDecoder(Decoder):
    """A decoder that computes few distinct numbers of rows, and a single sentence by itself.

    Args:
        decoder: The decoder to replace.
        round_up_rows: Rounds the number of rows to compute up.
        compaction_threshold: Compute all hypotheses of a step if at least this fraction is active.
    """

    def __init__(
        self, decoder: Decoder, round_up_rows: RoundUp, *, compaction_threshold: float
    ) -> None:
        super().__init__(decoder)
        self._round_up_rows = round_up_rows
        self._compaction_threshold = compaction_threshold

    @override
    def start(self, encoded: Tensor, lengths: Tensor) -> DecodingState:
        layers = list(self.layers())
        if len(lengths) > 1 or not all(map(decodes_alone, layers)):
            return super().start(encoded, lengths)
        encoded = encoded[:, : int(lengths[0])]
        prepared = [SingleSentenceLayer.of(layer, encoded) for layer in layers]
        return SingleSentenceCache(prepared, layers[0].self_attention.heads, self._round_up_rows)

    @override
    def new_cache(
        self, memory: list[tuple[Tensor, Tensor]], lengths: Tensor, window: int | None
    ) -> DecoderCache:
        return CpuCache.for_sources(memory, lengths, window=window)

    @override
    def step(
        self, x: Tensor, cache: DecoderCache | SingleSentenceCache, outputs: Tensor | None
    ) -> Tensor:
        if isinstance(cache, DecoderCache):
            return super().step(x, cache, outputs)
        x = cache.step(x)
        return x if outputs is None or len(outputs) == len(x) else x.index_select(0, outputs)

    @override
    def choose_rows(self, num_hypotheses: int, outputs: Tensor | None) -> StepRows:
        """Choose all hypotheses, if leaving some out would cost more than it saves."""
        if outputs is not None and len(outputs) < self._compaction_threshold * num_hypotheses:
            num_rows = self._round_up_rows(len(outputs))
            return RoundedRows(num_hypotheses, computed=outputs, num_rows=num_rows)
        if outputs is not None and len(outputs) == num_hypotheses:
            outputs = None
        num_rows = self._round_up_rows(num_hypotheses)
        return RoundedRows(num_hypotheses, num_rows=num_rows, outputs=outputs)


@dataclass(frozen=True, kw_only=True)
class RoundedRows(StepRows):
    """The hypotheses that a step computes, and spare rows after them."""

    num_rows: int  # number of rows to compute, including spare rows
    # Indices of the computed rows that return logits; None for all.
    outputs: Tensor | None = None

    @override
    def select(self, x: Tensor) -> Tensor:
        x = super().select(x)
        spare = self.num_rows - len(x)
        return torch.cat([x, x.new_zeros(spare, *x.shape[1:])]) if spare else x

    @override
    def scatter(self, x: Tensor) -> Tensor:
        return super().scatter(self._without_spare(x))

    @override
    def select_outputs(self, x: Tensor) -> Tensor:
        return self._without_spare(x) if self.outputs is None else x.index_select(0, self.outputs)

    def _without_spare(self, x: Tensor) -> Tensor:
        return x[: self.num_hypotheses if self.computed is None else len(self.computed)]


class CpuCache(DecoderCache):
    """The cache of several sentences, with the keys of sources as columns.

    It is in fp32 even if the model is in bf16, which would be converted at each product.
    """

    @override
    @staticmethod
    def stored(x: Tensor) -> Tensor:
        return x.to(cache_dtype(x))

    @override
    @staticmethod
    def stored_source_keys(keys: Tensor) -> Tensor:
        return keys.mT.to(cache_dtype(keys)).contiguous()

    @override
    def source_keys(self, index: int) -> Tensor:
        return self.memory[index][0]

    @override
    @staticmethod
    def attend(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        if weight is not None:
            return DecoderCache.attend(query, key, value, bias, weight)
        groups, num_heads, num_queries, width = query.shape
        # One pass casts queries and makes heads contiguous.
        queries = torch.empty(query.shape, dtype=key.dtype).copy_(query).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        # With beta=0, baddbmm reads the shape of its first argument only.
        unread = queries.new_empty(len(queries), num_queries, keys.size(2))
        with onednn_products() if key.is_contiguous() else contextlib.nullcontext():
            scores = torch.baddbmm(unread, queries, keys, beta=0, alpha=1 / math.sqrt(width))
            if bias is not None:
                scores.view(groups, num_heads, num_queries, -1).add_(bias[:, None])
            attended = torch.bmm(_softmax(scores), values)
        attended = attended.view(groups, num_heads, num_queries, -1)
        merged = query.new_empty(groups, num_queries, num_heads, values.size(-1))
        return merged.copy_(attended.transpose(1, 2)).view(groups * num_queries, -1)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax of scores [N, Q, C] over their columns.

    torch's takes up to ten times as long for fewer columns than a vector has elements.
    """
    num_columns = scores.size(2)
    if num_columns >= _VECTOR_SIZE:
        return scores.softmax(-1)
    padded = F.pad(scores, (0, _VECTOR_SIZE - num_columns), value=-math.inf)
    return padded.softmax(-1)[:, :, :num_columns]
