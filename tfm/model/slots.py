"""Decoding in slots: room of fixed shape, at fixed addresses, for sentences that come and go.

Each slot stands at a position of its own, which only the device knows. So a step launches the same
operations on the same memory, whatever is in the slots: they can be recorded once and replayed, as
CUDA graphs are, and no step waits for the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.model.attention import MultiHeadAttention


@dataclass(frozen=True, kw_only=True)
class SlotShape:
    """How much room there is.

    Attributes:
        num_slots: N.
        num_hypotheses: K, of each sentence.
        source_capacity: The greatest number of tokens of a source.
        capacity: T, the greatest number of tokens of an output, EOS included.
    """

    num_slots: int
    num_hypotheses: int
    source_capacity: int
    capacity: int


class DecoderSlots:
    """The sources and the past of the sentences in N slots.

    To the layers it is their past; see `LayerCache`.

    Attributes:
        positions: [N] int64 number of tokens that the hypotheses of each slot have taken in.

    Args:
        shape: Of the slots.
        num_layers: Of the decoder.
        num_heads: h.
        widths: h · d_k, h · d_k and h · d_v.
        dtype: Of keys and values.
        device: Where.
    """

    def __init__(
        self,
        shape: SlotShape,
        *,
        num_layers: int,
        num_heads: int,
        widths: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        num_slots, num_hypotheses, capacity = shape.num_slots, shape.num_hypotheses, shape.capacity
        self._num_slots, self._num_hypotheses = num_slots, num_hypotheses
        self._num_heads = num_heads
        self._widths = list(widths)
        width = sum(widths[1:])
        # Keys and values side by side, as a product makes them; zeros, as attention may read them.
        self._memory = torch.zeros(
            num_layers, num_slots, shape.source_capacity, width, dtype=dtype, device=device
        )
        self._past = torch.zeros(
            num_layers,
            num_slots,
            capacity * num_hypotheses,
            width,
            dtype=dtype,
            device=device,
        )
        self._source_lengths = torch.ones(num_slots, dtype=torch.long, device=device)
        self.positions = torch.zeros(num_slots, dtype=torch.long, device=device)
        # Whose column each hypothesis has at each position; see `slot_attention`.
        self._ancestors = torch.zeros(
            num_slots, num_hypotheses, capacity, dtype=torch.int16, device=device
        )
        hypotheses = torch.arange(num_hypotheses, device=device)
        self._own = hypotheses.to(torch.int16).view(1, -1, 1).expand(num_slots, -1, 1)
        slots = torch.arange(num_slots, device=device)[:, None]
        self._first_columns = slots * (capacity * num_hypotheses) + hypotheses  # [N, K]

    def prefill(self, places: Tensor, memory: Sequence[Tensor], lengths: Tensor) -> None:
        """Put sources into slots, before their first token.

        Args:
            places: [B] which slots.
            memory: For each layer [B, S, h · (d_k + d_v)] keys and values of the sources.
            lengths: [B] their lengths.
        """
        for room, keys_values in zip(self._memory, memory, strict=True):
            room[:, : keys_values.size(1)].index_copy_(0, places, keys_values)
        self._source_lengths.index_copy_(0, places, lengths)
        self.positions.index_fill_(0, places, 0)

    def begin_step(self) -> None:
        """Give each hypothesis the column of its next token."""
        columns = self._first_columns + self.positions[:, None] * self._num_hypotheses
        self._columns = columns.flatten()
        self._ends = self.positions + 1
        places = self.positions.view(-1, 1, 1).expand_as(self._own)
        self._ancestors.scatter_(2, places, self._own)

    def attend(
        self, index: int, attention: MultiHeadAttention, projected: Tensor, window: int | None
    ) -> Tensor:
        """See `LayerCache`; there is no window."""
        assert window is None  # noqa: S101 - such a model has no slots
        query_width = self._widths[0]
        past = self._past[index]
        past.flatten(0, 1).index_copy_(0, self._columns, projected[:, query_width:])
        return self._attend(
            attention, projected[:, :query_width], past, self._ends, self._ancestors
        )

    def attend_source(self, index: int, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        """See `LayerCache`."""
        return self._attend(attention, queries, self._memory[index], self._source_lengths, None)

    def reorder(self, parents: Tensor, is_active: Tensor) -> None:
        """Go on with some hypotheses of each slot, in another order.

        Args:
            parents: [N, K] which of the present ones each continues.
            is_active: [N] whether a slot's sentence does; others stay where they are.
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
        """[N · K, h · d_k] queries → [N · K, h · d_v]."""
        num_heads = self._num_heads
        query = queries.view(self._num_slots, self._num_hypotheses, num_heads, -1)
        key, value = (
            part.view(*part.shape[:2], num_heads, -1)
            for part in torch.split(keys_values, self._widths[1:], dim=2)
        )
        attended = attention.backend.attend_slots(query, key, value, ends, ancestors)
        return attended.flatten(0, 1)
