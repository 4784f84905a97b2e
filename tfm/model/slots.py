"""Decoding in slots: caches of fixed shape, at fixed addresses, for a stream of sentences.

The positions of slots are known to the device only. So a step launches the same operations on the
same memory whatever the slots hold: it can be recorded and replayed as a CUDA graph, and no step
waits for the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from tfm.model.attention import MultiHeadAttention
from tfm.model.layers import LayerCache


@dataclass(frozen=True)
class SlotShape:
    """The sizes of a pool of slots."""

    num_slots: int  # N
    num_hypotheses: int  # K, the number of hypotheses of each sentence
    source_capacity: int  # the maximum number of tokens of a source
    capacity: int  # T, the maximum number of tokens of an output, EOS included


class DecoderSlots(LayerCache):
    """The KV cache of the sentences in N slots.

    Args:
        shape: Sizes of the pool.
        attention: Attention of one of the layers, which all have the same heads.
        position_table: [T, d_model] the target's positions. Recorded steps read its memory, so it
            is kept even if the embedding replaces its own table by a longer one.
        num_layers: Number of layers.
        like: A tensor of the caches' dtype and device.
    """

    def __init__(
        self,
        shape: SlotShape,
        attention: MultiHeadAttention,
        *,
        position_table: Tensor,
        num_layers: int,
        like: Tensor,
    ) -> None:
        num_slots, num_hypotheses, capacity = shape.num_slots, shape.num_hypotheses, shape.capacity
        self._num_slots, self._num_hypotheses = num_slots, num_hypotheses
        self._num_heads, self._widths = attention.num_heads, attention.widths
        self.position_table = position_table
        device = like.device

        def zeros(*sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        # Keys and values side by side, as one product computes them.
        width, num_columns = sum(self._widths[1:]), capacity * num_hypotheses
        self._memory = like.new_zeros(num_layers, num_slots, shape.source_capacity, width)
        self._past = like.new_zeros(num_layers, num_slots, num_columns, width)
        self._source_lengths = torch.ones(num_slots, dtype=torch.long, device=device)
        self.positions = zeros(num_slots)  # [N] number of tokens so far
        # Whose column each hypothesis sees at each position: see `slot_attention`.
        self._ancestors = zeros(num_slots, num_hypotheses, capacity, dtype=torch.int16)
        hypotheses = torch.arange(num_hypotheses, device=device)
        self._own = hypotheses.to(torch.int16).view(1, -1, 1).expand(num_slots, -1, 1)
        slots = torch.arange(num_slots, device=device)[:, None]
        self._first_columns = slots * num_columns + hypotheses  # [N, K]

    def prefill(self, slots: Tensor, memory: Sequence[Tensor], lengths: Tensor) -> None:
        """Put sources of [B] lengths into slots [B], before their first token.

        `memory` is each layer's keys and values [B, S, h · (d_k + d_v)] of the sources.
        """
        for cache, keys_values in zip(self._memory, memory, strict=True):
            cache[:, : keys_values.size(1)].index_copy_(0, slots, keys_values)
        self._source_lengths.index_copy_(0, slots, lengths)
        self.positions.index_fill_(0, slots, 0)

    def begin_step(self) -> None:
        """Reserve the column of the next token of each hypothesis."""
        columns = self._first_columns + self.positions[:, None] * self._num_hypotheses
        self._columns = columns.flatten()
        self._ends = self.positions + 1
        index = self.positions.view(-1, 1, 1).expand_as(self._own)
        self._ancestors.scatter_(2, index, self._own)

    @override
    def attend(
        self, index: int, attention: MultiHeadAttention, projected: Tensor, window: int | None
    ) -> Tensor:
        assert window is None  # noqa: S101 - models with a window are not decoded in slots
        width, past = self._widths[0], self._past[index]
        past.flatten(0, 1).index_copy_(0, self._columns, projected[:, width:])
        return self._attend(attention, projected[:, :width], past, self._ends, self._ancestors)

    @override
    def attend_source(self, index: int, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        return self._attend(attention, queries, self._memory[index], self._source_lengths, None)

    def reorder(self, parents: Tensor, is_active: Tensor) -> None:
        """Replace the hypotheses of slots by continuations of parents [N, K] among them.

        `is_active` [N] says which slots advance; others keep their position.
        """
        index = parents[:, :, None].expand_as(self._ancestors)
        self._ancestors.copy_(self._ancestors.gather(1, index))
        self.positions.add_(is_active)

    def _attend(
        self,
        attention: MultiHeadAttention,
        queries: Tensor,
        keys_values: Tensor,
        ends: Tensor,
        ancestors: Tensor | None,
    ) -> Tensor:
        """Attend from [N · K, h · d_k] queries: [N · K, h · d_v]."""
        query = queries.view(self._num_slots, self._num_hypotheses, self._num_heads, -1)
        key, value = (
            x.view(*x.shape[:2], self._num_heads, -1)
            for x in torch.split(keys_values, self._widths[1:], dim=2)
        )
        attended = attention.backend.attend_slots(query, key, value, ends, ancestors)
        return attended.flatten(0, 1)
