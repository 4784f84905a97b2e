"""Sentences of several lengths, one after another on one axis of tokens, without padding."""

from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tfm.backends.spans import Spans, attention_spans

_CPU = torch.device("cpu")
# Sizes of the grid of heads are rounded up to these: each new size costs oneDNN preparations, of
# time and of memory, which it keeps.
_SENTENCES_MULTIPLE, _LENGTH_MULTIPLE = 8, 4


class Packing:
    """Where the tokens of B sentences lie on an axis of rows, and where on a grid of B × T slots.

    Tokens lie one after another. The rows after them are spare: they hold no token, what stands in
    them means nothing, and their gradients are zero. There is at least one, which stands in for
    what is padding on the grid.

    Where they lie is worked out on the CPU and sent to the device, which nothing here waits for.

    Args:
        lengths: [B] tokens of each sentence, on the CPU.
        num_rows: Rows of the axis; more than there are tokens.
        device: Where the rows are.
    """

    def __init__(self, lengths: Tensor, num_rows: int, device: torch.device = _CPU) -> None:
        self.lengths = lengths
        self.num_rows = num_rows
        self.num_tokens = int(lengths.sum())
        self.longest = int(lengths.max()) if len(lengths) else 0
        if num_rows <= self.num_tokens:
            raise ValueError(f"{self.num_tokens} tokens need more than {num_rows} rows")
        self._device = device
        self._spans: dict[bool, WeakKeyDictionary[Packing, Spans]] = {}
        self._head_rows: dict[tuple[int, int], Tensor] = {}  # by num_heads and num_parts
        self._head_slots: dict[tuple[int, int], Tensor] = {}

    def to(self, device: torch.device) -> "Packing":
        """Return the same packing with its indices on a device."""
        return Packing(self.lengths, self.num_rows, device)

    @cached_property
    def device_lengths(self) -> Tensor:
        """[B] tokens of each sentence, on the device, as masks need them."""
        return self._sent(self.lengths)

    @cached_property
    def positions(self) -> Tensor:
        """[num_rows] position of each token in its sentence, counted from 0."""
        return self._sent(self._positions)

    @cached_property
    def slots(self) -> Tensor:
        """[num_tokens] slot of each token on the grid."""
        return self._sent(self._slots)

    @cached_property
    def rows(self) -> Tensor:
        """[B · T] row of the token in each slot; the last row, a spare one, where there is none."""
        rows = torch.full((len(self.lengths) * self.longest,), self.num_rows - 1)
        rows[self._slots] = torch.arange(self.num_tokens)
        return self._sent(rows)

    @cached_property
    def offsets(self) -> Tensor:
        """[C] int32 row at which each sentence starts; then, again and again, where the last ends.

        C is the power of two above B, so that sizes repeat.
        """
        capacity = 1 << len(self.lengths).bit_length()
        offsets = torch.full((capacity,), self.num_tokens, dtype=torch.int32)
        offsets[: len(self.lengths)] = self.lengths.cumsum(0) - self.lengths
        return self._sent(offsets)

    def spans(self, keys: "Packing", *, causal: bool = False) -> Spans:
        """Which rows of keys each row sees: made once for a batch, for all layers.

        Args:
            keys: Packing of the keys, in which sentences have the same numbers; or this one.
            causal: Whether a token sees only those up to itself.
        """
        # Held weakly: a packing that holds itself would outlive its batch.
        made = self._spans.setdefault(causal, WeakKeyDictionary())
        if keys not in made:
            made[keys] = attention_spans(
                self.offsets,
                keys.offsets,
                num_queries=self.num_rows,
                num_keys=keys.num_rows,
                after=0 if causal else None,
            )
        return made[keys]

    @property
    def padded_shape(self) -> tuple[int, int]:
        """B' and T' of the grid of heads: B and T, or a few more."""
        return (
            -(-len(self.lengths) // _SENTENCES_MULTIPLE) * _SENTENCES_MULTIPLE,
            -(-self.longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE,
        )

    def head_rows(self, num_heads: int, num_projections: int) -> Tensor:
        """Where to find each head's rows, if rows are cut into parts and those into heads.

        Args:
            num_heads: h.
            num_projections: P vectors of each head in a row, such as its query, key and value.

        Returns:
            [P · B' · h · T'] index among the num_rows · P · h pieces of rows.
        """
        key = (num_heads, num_projections)
        if key not in self._head_rows:
            num_sentences, length = self.padded_shape
            rows = torch.full((num_sentences, 1, length), self.num_rows - 1)
            slots = self._sentences * length + self._positions[: self.num_tokens]
            rows.view(-1)[slots] = torch.arange(self.num_tokens)
            index = rows * (num_projections * num_heads)
            pieces = torch.arange(num_projections * num_heads).view(
                num_projections, 1, num_heads, 1
            )
            self._head_rows[key] = self._sent((index + pieces).flatten())
        return self._head_rows[key]

    def head_slots(self, num_heads: int, num_projections: int) -> Tensor:
        """The way back: where each piece of a row is among the P · B' · h · T'.

        Args:
            num_heads: h.
            num_projections: P.

        Returns:
            [num_rows · P · h] index; that of spare rows means nothing.
        """
        key = (num_heads, num_projections)
        if key not in self._head_slots:
            num_sentences, length = self.padded_shape
            first = torch.zeros(self.num_rows, num_heads, dtype=torch.int64)
            by_head = self._sentences[:, None] * num_heads + torch.arange(num_heads)
            first[: self.num_tokens] = by_head * length
            first += self._positions[:, None]
            parts = torch.arange(num_projections) * (num_sentences * num_heads * length)
            self._head_slots[key] = self._sent((first[:, None, :] + parts[:, None]).flatten())
        return self._head_slots[key]

    def pad(self, x: Tensor) -> Tensor:
        """[num_rows, …] → [B, T, …]; what stands at padding means nothing."""
        padded = x.index_select(0, self.rows)
        return padded.view(len(self.lengths), self.longest, *x.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, …] → [num_rows, …], spare rows zero."""
        packed = x.flatten(0, 1).index_select(0, self.slots)
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
    def _sentences(self) -> Tensor:
        """[num_tokens] number of the sentence of each token."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @cached_property
    def _slots(self) -> Tensor:
        return self._sentences * self.longest + self._positions[: self.num_tokens]

    def _sent(self, made: Tensor) -> Tensor:
        """To the device; what is pinned goes there while this process goes on."""
        if self._device.type == "cpu":
            return made
        pinned = made.pin_memory() if self._device.type == "cuda" else made
        return pinned.to(self._device, non_blocking=True)
