"""Packed batches: the tokens of all sentences on one axis, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_CPU = torch.device("cpu")
# An operation without a public name: a version of torch may lack it.
_FOREACH_COPY: Any = getattr(torch, "_foreach_copy_", None)
# Shapes of heads are rounded up to multiples of these: for each new shape, oneDNN takes time to
# prepare and keeps memory.
_SENTENCES_MULTIPLE, _LENGTH_MULTIPLE = 8, 4


@dataclass(frozen=True)
class Spans:
    """The mask of attention in packed batches: the first row that each row sees, and the end.

    Sentence boundaries and the causal mask leave contiguous spans. Those of padding are empty.
    """

    keys: Tensor  # [N, 2] int32, the keys that each query sees
    queries: Tensor  # [M, 2] int32, the queries that see each key: the transposed mask


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

    def __init__(self, lengths: Tensor, num_rows: int, device: torch.device = _CPU) -> None:
        self.lengths = lengths
        self.num_rows = num_rows
        self.num_tokens = int(lengths.sum())
        self.longest = int(lengths.max()) if len(lengths) else 0
        if num_rows <= self.num_tokens:
            raise ValueError(f"{self.num_tokens} tokens need more than {num_rows} rows")
        self._device = device
        self._spans: dict[bool, WeakKeyDictionary[Packing, Spans]] = {}
        self._split_indices: dict[tuple[int, int], Tensor] = {}  # by num_heads, num_projections
        self._merge_indices: dict[tuple[int, int], Tensor] = {}

    def to(self, device: torch.device) -> "Packing":
        """Return the same packing with its indices on a device, computed at once."""
        packing = Packing(self.lengths, self.num_rows, device)
        for name in ("device_lengths", "positions", "pack_indices", "pad_indices", "offsets"):
            getattr(packing, name)
        return packing

    @cached_property
    def device_lengths(self) -> Tensor:
        """[B] numbers of tokens, on the device."""
        return self._to_device(self.lengths)

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

    @cached_property
    def offsets(self) -> Tensor:
        """[C] int32 first row of each sentence, then num_tokens up to the capacity C.

        C is the power of two above B, so that few sizes occur.
        """
        capacity = 1 << len(self.lengths).bit_length()
        offsets = torch.full((capacity,), self.num_tokens, dtype=torch.int32)
        offsets[: len(self.lengths)] = self.lengths.cumsum(0) - self.lengths
        return self._to_device(offsets)

    def spans(self, keys: "Packing", *, causal: bool = False) -> Spans:
        """Return the rows of keys that each row sees, cached for all layers.

        In self-attention, `keys` is this packing, and `causal` hides later tokens.
        """
        # A strong reference of a packing to itself would outlive its batch.
        cache = self._spans.setdefault(causal, WeakKeyDictionary())
        if keys not in cache:
            cache[keys] = attention_spans(
                self.offsets,
                keys.offsets,
                num_queries=self.num_rows,
                num_keys=keys.num_rows,
                causal=causal,
            )
        return cache[keys]

    @property
    def padded_shape(self) -> tuple[int, int]:
        """B' and T' of padded heads: B and T, rounded up."""
        return (
            -(-len(self.lengths) // _SENTENCES_MULTIPLE) * _SENTENCES_MULTIPLE,
            -(-self.longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE,
        )

    def split_heads_indices(self, num_heads: int, num_projections: int) -> Tensor:
        """Return indices that split rows of P projections (such as query, key, value) into heads.

        They are [P · B' · h · T'] indices of the num_rows · P · h vectors of packed rows.
        """
        key = (num_heads, num_projections)
        if key not in self._split_indices:
            num_sentences, length = self.padded_shape
            rows = torch.full((num_sentences, 1, length), self.num_rows - 1)
            padded_indices = self._sentences * length + self._positions[: self.num_tokens]
            rows.view(-1)[padded_indices] = torch.arange(self.num_tokens)
            first = rows * (num_projections * num_heads)
            vectors = torch.arange(num_projections * num_heads)
            vectors = vectors.view(num_projections, 1, num_heads, 1)
            self._split_indices[key] = self._to_device((first + vectors).flatten())
        return self._split_indices[key]

    def merge_heads_indices(self, num_heads: int, num_projections: int) -> Tensor:
        """Return the inverse of `split_heads_indices`, undefined for spare rows.

        They are [num_rows · P · h] indices of the P · B' · h · T' vectors of heads.
        """
        key = (num_heads, num_projections)
        if key not in self._merge_indices:
            num_sentences, length = self.padded_shape
            first = torch.zeros(self.num_rows, num_heads, dtype=torch.int64)
            heads = self._sentences[:, None] * num_heads + torch.arange(num_heads)
            first[: self.num_tokens] = heads * length
            first += self._positions[:, None]
            projections = torch.arange(num_projections) * (num_sentences * num_heads * length)
            indices = first[:, None, :] + projections[:, None]
            self._merge_indices[key] = self._to_device(indices.flatten())
        return self._merge_indices[key]

    def pad(self, x: Tensor) -> Tensor:
        """Pad packed rows: [num_rows, …] → [B, T, …], with undefined content at padding."""
        padded = x.index_select(0, self.pad_indices)
        return padded.view(len(self.lengths), self.longest, *x.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        """Pack a padded batch: [B, T, …] → [num_rows, …], with zeros in spare rows."""
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
    def _sentences(self) -> Tensor:
        """[num_tokens] index of each token's sentence."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @cached_property
    def _pack_indices(self) -> Tensor:
        return self._sentences * self.longest + self._positions[: self.num_tokens]

    def _to_device(self, x: Tensor) -> Tensor:
        return copy_to_device(x, self._device)


def copy_to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of any shape from the CPU to a device, without synchronizing."""
    if device.type == "cpu":
        return x
    # The copy of pinned memory is asynchronous.
    pinned = x.pin_memory() if device.type == "cuda" else x
    return pinned.to(device, non_blocking=True)


def copy_tensors(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors of any shape to others of the same shapes, together if torch can."""
    if _FOREACH_COPY is not None:
        _FOREACH_COPY(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def attention_spans(
    query_offsets: Tensor, key_offsets: Tensor, *, num_queries: int, num_keys: int, causal: bool
) -> Spans:
    """Return spans in which each sentence's queries see its keys, without synchronizing.

    Offsets [C] are those of `Packing`: the same of queries and keys in self-attention, in which
    `causal` hides later keys. N is `num_queries` and M is `num_keys`, the numbers of rows.
    """
    keys = _visible_spans(query_offsets, key_offsets, num_queries)
    queries = _visible_spans(key_offsets, query_offsets, num_keys)
    if causal:
        rows = torch.arange(num_queries, dtype=torch.int32, device=query_offsets.device)
        keys[:, 1].clamp_(max=rows + 1)
        queries[:, 0].clamp_(min=rows, max=queries[:, 1])
    return Spans(keys, queries)


def _visible_spans(offsets: Tensor, other_offsets: Tensor, num_rows: int) -> Tensor:
    """Return the [num_rows, 2] spans of the other axis that belong to each row's sentence."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=offsets.device)
    sentence = torch.searchsorted(offsets, rows, right=True) - 1
    sentence = sentence.clamp(max=len(offsets) - 2)
    spans = torch.stack((other_offsets[sentence], other_offsets[sentence + 1]), dim=-1)
    return spans * (rows < offsets[-1])[:, None]
