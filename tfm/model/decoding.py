"""Where the decoding of the Transformer stands: what its attention looks back at.

The hypotheses of a sentence share a cache, to which each adds a column of keys and values at each
step; which columns are its own past, a mask says. So what hypotheses have in common stays where it
is, and taking another order costs a look at the mask, not a copy of the past. To attention, they
are queries over the same keys.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tfm.model.attention import MultiHeadAttention
from tfm.model.one_sentence import SentencePast

KeysValues = tuple[Tensor, Tensor]

# Looking at the columns of other hypotheses costs more than copies of one's own, if these are many.
_MOST_SHARING = 8
_FIRST_CAPACITY = 64


@dataclass
class TransformerState:
    """The source of each sentence and the past of each hypothesis.

    Keys and values lie in groups: of all hypotheses of a sentence, which share columns and see
    those that `hidden` does not hide; or, if `hidden` is None, each of a hypothesis of its own. All
    groups have as many columns.

    Attributes:
        memory: For each layer, the source's keys [B, h, d_k, S] and values [B, h, S, d_v].
        hidden_memory: [B, 1, S] what is added to scores: -inf at padding; None if there is none.
        past: For each layer, keys [G, h, capacity, d_k] and values [G, h, capacity, d_v].
        hidden: [B, K, C] what is added to scores: -inf where a column is another hypothesis' past.
        num_sentences: B.
        num_hypotheses: K.
        position: Number of tokens so far.
        alone: The past, and the source, if it is one sentence that is decoded by itself: `memory`
            and `past` are empty then.
        starts: The first column of each position, and the end of the last.
    """

    memory: list[KeysValues]
    hidden_memory: Tensor | None
    num_sentences: int
    past: list[KeysValues] = field(default_factory=list)
    hidden: Tensor | None = None
    num_hypotheses: int = 1
    position: int = 0
    alone: SentencePast | None = None
    starts: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def before_first(cls, memory: list[KeysValues], lengths: Tensor) -> "TransformerState":
        """The state of B sentences with no token yet.

        Args:
            memory: For each layer, the source's keys [B, h, S, d_k] and values [B, h, S, d_v].
            lengths: [B] source lengths.
        """
        columns = torch.arange(memory[0][0].size(2), device=lengths.device)
        padding = (columns >= lengths[:, None])[:, None]
        hidden = _minus_infinity(padding) if padding.any() else None
        kept = [(_as_cached(key.mT), _as_cached(value)) for key, value in memory]
        return cls(memory=kept, hidden_memory=hidden, num_sentences=len(lengths))

    @property
    def num_groups(self) -> int:
        """G: how many share the columns of a cache among them."""
        return self.num_sentences * (self.num_hypotheses if self.hidden is None else 1)

    def begin_step(self) -> None:
        """Give each hypothesis a column for its next token."""
        new = 1
        if self.hidden is not None:
            new = self.num_hypotheses
            others = ~torch.eye(new, dtype=torch.bool, device=self.hidden.device)
            own = _minus_infinity(others).expand(self.num_sentences, -1, -1)
            self.hidden = torch.cat([self.hidden, own], dim=2)
        self.starts.append(self.starts[-1] + new)

    def end_step(self) -> None:
        """All layers have taken in the new columns."""
        self.position += 1

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
            these what `hidden` hides.
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
        hidden = None if self.hidden is None else self.hidden[:, :, first:]
        return keys[:, :, first:end].mT, values[:, :, first:end], hidden

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index among the B·K present hypotheses of each that goes on; those
                in one row belong to one sentence.
        """
        if self.alone is not None:
            self.alone.reorder(rows[0])
            return
        if len(rows) < self.num_sentences:
            self._keep_sentences(rows[:, 0] // self.num_hypotheses)
            sentences = torch.arange(len(rows), device=rows.device)[:, None]
            rows = sentences * self.num_hypotheses + rows % self.num_hypotheses
        share = rows.size(1) <= _MOST_SHARING
        if self.hidden is not None:
            if share:
                self.hidden = self.hidden.flatten(0, 1)[rows]
            else:
                self._part(rows.flatten())
        elif share and self.num_hypotheses == 1 and rows.size(1) > 1:
            none = torch.zeros((), device=rows.device)
            self.hidden = none.expand(*rows.shape, self.starts[-1])
        elif rows.numel() != self.num_groups or self.num_hypotheses > 1:
            self._select(rows.flatten())
        self.num_hypotheses = rows.size(1)

    def _keep_sentences(self, sentences: Tensor) -> None:
        groups = sentences
        if self.hidden is None:
            hypotheses = torch.arange(self.num_hypotheses, device=sentences.device)
            groups = (sentences[:, None] * self.num_hypotheses + hypotheses).flatten()
        else:
            self.hidden = self.hidden[sentences]
        self._select(groups)
        self.memory = [
            (key.index_select(0, sentences), value.index_select(0, sentences))
            for key, value in self.memory
        ]
        if self.hidden_memory is not None:
            self.hidden_memory = self.hidden_memory[sentences]
        self.num_sentences = len(sentences)

    def _select(self, groups: Tensor) -> None:
        """Go on with the caches of some groups: of their columns, those in use."""
        num_columns = self.starts[-1]
        self.past = [
            (_selected(keys, groups, num_columns), _selected(values, groups, num_columns))
            for keys, values in self.past
        ]

    def _part(self, rows: Tensor) -> None:
        """Give each hypothesis a cache of its own, with the columns of its past."""
        assert self.hidden is not None  # noqa: S101 - those who part have shared
        own = (self.hidden.flatten(0, 1)[rows] == 0).nonzero()[:, 1].view(len(rows), -1)
        sentences = (rows // self.num_hypotheses)[:, None]
        self.past = [
            (
                _with_capacity(keys[sentences, :, own].transpose(1, 2)),
                _with_capacity(values[sentences, :, own].transpose(1, 2)),
            )
            for keys, values in self.past
        ]
        self.hidden = None
        self.starts = list(range(self.position + 1))


@dataclass(frozen=True)
class Step:
    """The newest tokens of the hypotheses of some sentences.

    Attributes:
        tokens: [B, K] token ids.
        state: Where the decoding of these sentences stands.
        rows: [R] index among the B·K hypotheses of those that are computed; None for all.
        among: Index, among those that are computed, of those that are asked for; None for all.
    """

    tokens: Tensor
    state: TransformerState
    rows: Tensor | None = None
    among: Tensor | None = None

    @classmethod
    def of(
        cls, tokens: Tensor, state: TransformerState, rows: Tensor | None, worth_computing: float
    ) -> "Step":
        """A step of rows that are asked for, of which all are computed if that is less work.

        Args:
            tokens: [B, K] token ids.
            state: Where the decoding of these sentences stands.
            rows: [R] index of those that are asked for; None for all.
            worth_computing: See `Backend`.
        """
        num_slots = tokens.numel()
        if rows is None or len(rows) == num_slots:
            return cls(tokens, state)
        if len(rows) >= worth_computing * num_slots:
            return cls(tokens, state, among=rows)
        return cls(tokens, state, rows)

    @property
    def num_rows(self) -> int:
        """R."""
        return self.tokens.numel() if self.rows is None else len(self.rows)

    def computed(self, grid: Tensor) -> Tensor:
        """[B·K, …] → [R, …]."""
        return grid if self.rows is None else grid.index_select(0, self.rows)

    def spread(self, x: Tensor) -> Tensor:
        """[R, …] → [B·K, …], zeros where nothing is computed."""
        if self.rows is None:
            return x
        return x.new_zeros(self.tokens.numel(), *x.shape[1:]).index_copy_(0, self.rows, x)


class StepRows:
    """The rows of steps that are taken together, one step after another, and spare ones behind.

    To the layers it is their past; see `Past`.

    Args:
        steps: The steps.
        rounded: How many rows to compute for so many: as many or a few more.
    """

    def __init__(self, steps: Sequence[Step], rounded: Callable[[int], int]) -> None:
        self.steps = steps
        self._sizes = [step.num_rows for step in steps]
        self._num_used = sum(self._sizes)
        self._num_rows = rounded(self._num_used)

    def joined(self, parts: Iterable[Tensor]) -> Tensor:
        """What each step has of rows [R, …] → [all rows, …]."""
        whole = list(parts)
        if spare := self._num_rows - self._num_used:
            whole.append(whole[0].new_zeros(spare, *whole[0].shape[1:]))
        return whole[0] if len(whole) == 1 else torch.cat(whole)

    def attend(
        self, index: int, attention: MultiHeadAttention, projected: Tensor, window: int | None
    ) -> Tensor:
        """See `Past`."""
        attended = []
        for step, part in self.parted(projected):
            query, key, value = attention.split_heads(part, step.state.num_groups)
            past = step.state.extend(index, key, value, window)
            attended.append(step.computed(attention.attend_hidden(query, *past)))
        return self.joined(attended)

    def attend_source(self, index: int, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        """See `Past`."""
        attended = []
        for step, part in self.parted(queries):
            state = step.state
            query = attention.heads(part, state.num_sentences)
            seen = attention.attend_hidden(query, *state.memory[index], state.hidden_memory)
            attended.append(step.computed(seen))
        return self.joined(attended)

    def asked_for(self, x: Tensor) -> Tensor:
        """[all rows, …] → those that the steps ask for, step by step."""
        if all(step.among is None for step in self.steps):
            return x[: self._num_used]
        return torch.cat(
            [
                part if step.among is None else part.index_select(0, step.among)
                for step, part in zip(self.steps, self._split(x), strict=True)
            ]
        )

    def parted(self, x: Tensor) -> Iterable[tuple[Step, Tensor]]:
        """[all rows, …] → each step and its [B·K, …]."""
        parts = self._split(x)
        return ((step, step.spread(part)) for step, part in zip(self.steps, parts, strict=True))

    def _split(self, x: Tensor) -> Sequence[Tensor]:
        if len(self._sizes) == 1 and len(x) == self._num_used:
            return [x]
        return torch.split(x[: self._num_used], self._sizes)


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
