"""The KV cache of decoding: what the attention of the newest tokens looks back at.

The hypotheses of a sentence share a cache, to which each adds a column of keys and values at each
step; a mask says which columns are its own past. So what hypotheses have in common stays where it
is, and reordering them reorders the mask, not the cache. To attention, they are queries over the
same keys.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tfm.backends.plain import Backend
from tfm.model.attention import MultiHeadAttention
from tfm.model.single_sentence import SingleSentenceCache

KeysValues = tuple[Tensor, Tensor]

# Above this beam size, one cache per hypothesis is faster than a shared, masked one.
_MAX_SHARING = 8
_FIRST_CAPACITY = 64


@dataclass(frozen=True)
class StepRows:
    """Which of the B·K hypotheses a step computes.

    Attributes:
        num_hypotheses: B·K.
        num_rows: How many rows are computed, spare ones at the end included.
        computed: [R] index of the hypotheses that are computed; None for all.
        wanted: Index, among those computed, of those whose logits are wanted; None for all.
    """

    num_hypotheses: int
    num_rows: int
    computed: Tensor | None = None
    wanted: Tensor | None = None

    @classmethod
    def of(cls, num_hypotheses: int, wanted: Tensor | None, backend: Backend) -> "StepRows":
        """The rows of a step: all hypotheses, if to leave some out would cost more than it saves.

        Args:
            num_hypotheses: B·K.
            wanted: [R] index of the hypotheses whose logits are wanted; None for all.
            backend: What computes.
        """
        if wanted is None or len(wanted) == num_hypotheses:
            return cls(num_hypotheses, backend.round_up_rows(num_hypotheses))
        if len(wanted) >= backend.compaction_threshold * num_hypotheses:
            return cls(num_hypotheses, backend.round_up_rows(num_hypotheses), wanted=wanted)
        return cls(num_hypotheses, backend.round_up_rows(len(wanted)), computed=wanted)

    def select(self, x: Tensor) -> Tensor:
        """[B·K, …] → [num_rows, …], zeros in the spare rows."""
        if self.computed is not None:
            x = x.index_select(0, self.computed)
        return self.pad(x)

    def pad(self, x: Tensor) -> Tensor:
        """Append the spare rows, zeros, to those that are computed."""
        spare = self.num_rows - len(x)
        return torch.cat([x, x.new_zeros(spare, *x.shape[1:])]) if spare else x

    def scatter(self, x: Tensor) -> Tensor:
        """[num_rows, …] → [B·K, …], zeros where nothing is computed."""
        if self.computed is None:
            return x[: self.num_hypotheses]
        everything = x.new_zeros(self.num_hypotheses, *x.shape[1:])
        return everything.index_copy_(0, self.computed, x[: len(self.computed)])

    def outputs(self, x: Tensor) -> Tensor:
        """[num_rows, …] → the rows whose logits are wanted."""
        if self.wanted is not None:
            return x.index_select(0, self.wanted)
        return x[: self.num_hypotheses if self.computed is None else len(self.computed)]


@dataclass
class DecoderCache:
    """The source of each sentence and the past of each hypothesis.

    Keys and values lie in groups: of all hypotheses of a sentence, which share columns and see
    those that `bias` does not hide; or, if `bias` is None, each of a hypothesis of its own. All
    groups have the same number of columns.

    Attributes:
        memory: For each layer, the source's keys [B, h, d_k, S] and values [B, h, S, d_v].
        memory_bias: [B, 1, S] added to scores: -inf at padding; None if there is none.
        past: For each layer, keys [G, h, capacity, d_k] and values [G, h, capacity, d_v].
        bias: [B, K, C] added to scores: -inf where a column is another hypothesis' past.
        num_sentences: B.
        num_hypotheses: K.
        position: Number of tokens so far.
        single: The cache of a single sentence that is decoded by itself; `memory` and `past` are
            empty then.
        starts: The first column of each position, and the end of the last.
    """

    memory: list[KeysValues]
    memory_bias: Tensor | None
    num_sentences: int
    past: list[KeysValues] = field(default_factory=list)
    bias: Tensor | None = None
    num_hypotheses: int = 1
    position: int = 0
    single: SingleSentenceCache | None = None
    starts: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def before_first(cls, memory: list[KeysValues], lengths: Tensor) -> "DecoderCache":
        """The cache of B sentences before their first token.

        Args:
            memory: For each layer, the source's keys [B, h, S, d_k] and values [B, h, S, d_v].
            lengths: [B] source lengths.
        """
        columns = torch.arange(memory[0][0].size(2), device=lengths.device)
        padding = (columns >= lengths[:, None])[:, None]
        bias = _minus_infinity(padding) if padding.any() else None
        kept = [(_as_cached(key.mT), _as_cached(value)) for key, value in memory]
        return cls(memory=kept, memory_bias=bias, num_sentences=len(lengths))

    @property
    def num_groups(self) -> int:
        """G."""
        return self.num_sentences * (self.num_hypotheses if self.bias is None else 1)

    def begin_step(self, rows: StepRows) -> None:
        """Give each hypothesis a column for its newest token.

        Args:
            rows: Those that the layers compute.
        """
        self._rows = rows
        new = 1
        if self.bias is not None:
            new = self.num_hypotheses
            others = ~torch.eye(new, dtype=torch.bool, device=self.bias.device)
            own = _minus_infinity(others).expand(self.num_sentences, -1, -1)
            self.bias = torch.cat([self.bias, own], dim=2)
        self.starts.append(self.starts[-1] + new)

    def attend(
        self, index: int, attention: MultiHeadAttention, projected: Tensor, window: int | None
    ) -> Tensor:
        """See `LayerCache`."""
        query, key, value = attention.split_heads(self._rows.scatter(projected), self.num_groups)
        cached = self.extend(index, key, value, window)
        return self._rows.select(attention.attend_cached(query, *cached))

    def attend_source(self, index: int, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        """See `LayerCache`."""
        query = attention.heads(self._rows.scatter(queries), self.num_sentences)
        attended = attention.attend_cached(query, *self.memory[index], self.memory_bias)
        return self._rows.select(attended)

    def extend(
        self, index: int, key: Tensor, value: Tensor, window: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Put a layer's keys and values into the new columns.

        Args:
            index: Number of the layer.
            key: [G, h, new, d_k].
            value: [G, h, new, d_v].
            window: How many positions the newest one sees, itself among them; None for all.

        Returns:
            Keys [G, h, d_k, C] and values [G, h, C, d_v] of the columns of those positions, and of
            these what `bias` hides.
        """
        start, end = self.starts[-2:]
        if index == len(self.past):
            self.past.append((_with_capacity(key), _with_capacity(value)))
        elif end > self.past[index][0].size(2):
            keys, values = self.past[index]
            self.past[index] = _lengthened(keys, end), _lengthened(values, end)
        keys, values = self.past[index]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        first = 0 if window is None else self.starts[max(0, len(self.starts) - 1 - window)]
        bias = None if self.bias is None else self.bias[:, :, first:]
        return keys[:, :, first:end].mT, values[:, :, first:end], bias

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index among the B·K present hypotheses of each that goes on; those
                in one row belong to one sentence.
        """
        if self.single is not None:
            self.single.reorder(rows[0])
            return
        if len(rows) < self.num_sentences:
            self._keep_sentences(rows[:, 0] // self.num_hypotheses)
            sentences = torch.arange(len(rows), device=rows.device)[:, None]
            rows = sentences * self.num_hypotheses + rows % self.num_hypotheses
        share = rows.size(1) <= _MAX_SHARING
        if self.bias is not None:
            if share:
                self.bias = self.bias.flatten(0, 1)[rows]
            else:
                self._separate(rows.flatten())
        elif share and self.num_hypotheses == 1 and rows.size(1) > 1:
            none = torch.zeros((), device=rows.device)
            self.bias = none.expand(*rows.shape, self.starts[-1])
        elif rows.numel() != self.num_groups or self.num_hypotheses > 1:
            self._select(rows.flatten())
        self.num_hypotheses = rows.size(1)

    def _keep_sentences(self, sentences: Tensor) -> None:
        groups = sentences
        if self.bias is None:
            hypotheses = torch.arange(self.num_hypotheses, device=sentences.device)
            groups = (sentences[:, None] * self.num_hypotheses + hypotheses).flatten()
        else:
            self.bias = self.bias[sentences]
        self._select(groups)
        self.memory = [
            (key.index_select(0, sentences), value.index_select(0, sentences))
            for key, value in self.memory
        ]
        if self.memory_bias is not None:
            self.memory_bias = self.memory_bias[sentences]
        self.num_sentences = len(sentences)

    def _select(self, groups: Tensor) -> None:
        """Go on with the caches of some groups: of their columns, those in use."""
        num_columns = self.starts[-1]
        self.past = [
            (_selected(keys, groups, num_columns), _selected(values, groups, num_columns))
            for keys, values in self.past
        ]

    def _separate(self, rows: Tensor) -> None:
        """Give each hypothesis a cache of its own, with the columns of its past."""
        assert self.bias is not None  # noqa: S101 - separate hypotheses have shared a cache
        own = (self.bias.flatten(0, 1)[rows] == 0).nonzero()[:, 1].view(len(rows), -1)
        sentences = (rows // self.num_hypotheses)[:, None]
        self.past = [
            (
                _with_capacity(keys[sentences, :, own].transpose(1, 2)),
                _with_capacity(values[sentences, :, own].transpose(1, 2)),
            )
            for keys, values in self.past
        ]
        self.bias = None
        self.starts = list(range(self.position + 1))


def _minus_infinity(where: Tensor) -> Tensor:
    return torch.zeros(where.shape, device=where.device).masked_fill_(where, -math.inf)


def _as_cached(x: Tensor) -> Tensor:
    """As attention reads it fastest: on a CPU, bf16 would be copied for each product."""
    return x.to(_cached_type(x)).contiguous()


def _cached_type(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_cuda or x.dtype == torch.float64 else torch.float32


def _selected(cache: Tensor, groups: Tensor, num_columns: int) -> Tensor:
    selected = cache.new_empty(len(groups), *cache.shape[1:])
    used = cache[:, :, :num_columns]
    torch.index_select(used, 0, groups, out=selected[:, :, :num_columns])
    return selected


def _with_capacity(x: Tensor) -> Tensor:
    """Put columns [G, h, C, d] into a cache with room for more."""
    return _copied(x, max(_FIRST_CAPACITY, x.size(2)))


def _lengthened(cache: Tensor, num_columns: int) -> Tensor:
    """A cache with as many columns, and as many again as room for more: so it happens seldom."""
    return _copied(cache, 2 * num_columns)


def _copied(x: Tensor, capacity: int) -> Tensor:
    groups, num_heads, num_columns, width = x.shape
    cache = x.new_empty(groups, num_heads, capacity, width, dtype=_cached_type(x))
    cache[:, :, :num_columns] = x
    return cache
