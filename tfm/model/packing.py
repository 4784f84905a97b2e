"""The layouts of a batch: padded, or packed on one axis without padding."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CPU = torch.device("cpu")
_SPARE_SEGMENTS = 16


@dataclass(frozen=True)
class Padded:
    """The layout of B sentences that are padded at the end: tensors [B, T, …]."""

    length: int  # T
    # [B] numbers of tokens, on the device; None if no padding must be hidden.
    device_lengths: Tensor | None = None
    first_position: int = 0  # of each sentence

    @property
    def num_positions(self) -> int:
        """The number of positions up to the last one."""
        return self.first_position + self.length

    def position_rows(self, table: Tensor) -> Tensor:
        """Return the rows of a table [num_positions, d] at the tokens' positions: [T, d]."""
        return table[self.first_position : self.num_positions]

    def pad(self, x: Tensor) -> Tensor:
        """Return a batch [B, T, …] as it is."""
        return x

    def pack(self, x: Tensor) -> Tensor:
        """Return a batch [B, T, …] as it is."""
        return x


class Packing:
    """The layout of B sentences on an axis of rows, and its indices to and from padded batches.

    Sentences lie one after another. At least one spare row follows: its content is undefined, its
    gradient is zero, and padding is read from it. In a padded batch, T is the longest length.
    Indices are computed on the CPU and copied to the device without synchronizing.

    Args:
        lengths: [B] numbers of tokens, on the CPU.
        num_rows: Size of the axis, greater than the number of tokens.
        device: Device of the rows.
    """

    def __init__(
        self,
        lengths: Tensor,
        num_rows: int,
        device: torch.device = _CPU,
    ) -> None:
        self.lengths = lengths
        self.num_rows = num_rows
        self.num_tokens = int(lengths.sum())
        self.longest = int(lengths.max()) if len(lengths) else 0
        if num_rows <= self.num_tokens:
            raise ValueError(f"{self.num_tokens} tokens need more than {num_rows} rows")
        self._device = device

    def to(self, device: torch.device) -> "Packing":
        """Return the same packing with its indices on a device, computed at once."""
        packing = Packing(self.lengths, self.num_rows, device)
        for name in ("device_lengths", "positions", "offsets", "pack_indices", "pad_indices"):
            getattr(packing, name)
        return packing

    @cached_property
    def device_lengths(self) -> Tensor:
        """[B] numbers of tokens, on the device."""
        return self._to_device(self.lengths)

    @cached_property
    def offsets(self) -> Tensor:
        """[B + 17] int32 first row of each sentence and of 16 segments of spare rows, and the end.

        Some segments may be empty. As one, spare rows would be longer than most sentences.
        """
        num_spare = self.num_rows - self.num_tokens
        spare_ends = torch.arange(1, _SPARE_SEGMENTS + 1) * num_spare // _SPARE_SEGMENTS
        ends = torch.cat([self.lengths.cumsum(0), self.num_tokens + spare_ends])
        return self._to_device(F.pad(ends, (1, 0)).int())

    @property
    def longest_segment(self) -> int:
        """The length of the longest sentence or segment of spare rows."""
        return max(self.longest, -(-(self.num_rows - self.num_tokens) // _SPARE_SEGMENTS))

    @cached_property
    def positions(self) -> Tensor:
        """[num_rows] position of each token in its sentence, counted from 0."""
        return self._to_device(self._positions)

    @cached_property
    def pack_indices(self) -> Tensor:
        """[num_tokens] index of each token in the flattened padded batch."""
        return self._to_device(self._pack_indices)

    @cached_property
    def pad_indices(self) -> Tensor:
        """[B · T] row of each token of the padded batch; the last row, a spare one, at padding."""
        rows = torch.full((len(self.lengths) * self.longest,), self.num_rows - 1)
        rows[self._pack_indices] = torch.arange(self.num_tokens)
        return self._to_device(rows)

    @property
    def num_positions(self) -> int:
        """The number of positions up to the last one."""
        return self.longest

    def position_rows(self, table: Tensor) -> Tensor:
        """Return the rows of a table [num_positions, d] at the tokens' positions: [num_rows, d]."""
        return table.index_select(0, self.positions)

    def pad(self, x: Tensor) -> Tensor:
        """Pad packed rows: [num_rows, …] → [B, T, …], with undefined content at padding."""
        padded: Tensor = _Gather.apply(x, self, False)  # type: ignore[no-untyped-call]
        return padded

    def pack(self, x: Tensor) -> Tensor:
        """Pack a padded batch: [B, T, …] → [num_rows, …], with zeros in spare rows."""
        packed: Tensor = _Gather.apply(x, self, True)  # type: ignore[no-untyped-call]
        return packed

    def gather(self, x: Tensor, *, is_padded: bool) -> Tensor:
        """Pack a batch [B, T, …], or pad rows [num_rows, …], without a gradient."""
        if not is_padded:
            padded = x.index_select(0, self.pad_indices)
            return padded.view(len(self.lengths), self.longest, *x.shape[1:])
        packed = x.flatten(0, 1).index_select(0, self.pack_indices)
        spare = packed.new_zeros(self.num_rows - self.num_tokens, *packed.shape[1:])
        return torch.cat([packed, spare])

    @cached_property
    def _positions(self) -> Tensor:
        starts = self.lengths.cumsum(0) - self.lengths
        positions = torch.zeros(self.num_rows, dtype=torch.int64)
        torch.arange(self.num_tokens, out=positions[: self.num_tokens])
        positions[: self.num_tokens] -= starts.repeat_interleave(self.lengths)
        return positions

    @cached_property
    def sentences(self) -> Tensor:
        """[num_tokens] index of each token's sentence, on the CPU."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @cached_property
    def _pack_indices(self) -> Tensor:
        return self.sentences * self.longest + self._positions[: self.num_tokens]

    def _to_device(self, x: Tensor) -> Tensor:
        return copy_to_device(x, self._device)


class _Gather(torch.autograd.Function):
    """The gradient of packing is padding, and the gradient of padding is packing.

    No rows are summed, so the result does not depend on the order of a GPU's sums. Padding and the
    spare rows that it is read from have no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, packing: Packing, is_padded: bool) -> Tensor:
        ctx.packing, ctx.is_padded = packing, is_padded
        return packing.gather(x, is_padded=is_padded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.packing.gather(grad, is_padded=not ctx.is_padded), None, None


# How the sentences of a batch lie in its tensors.
Layout = Padded | Packing


def copy_to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of any shape from the CPU to a device, without synchronizing."""
    if device.type == "cpu":
        return x
    # The copy of pinned memory is asynchronous.
    pinned = x.pin_memory() if device.type == "cuda" else x
    return pinned.to(device, non_blocking=True)
