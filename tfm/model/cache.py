"""The KV cache of decoding.

The hypotheses of a sentence share a cache. Each hypothesis appends a column of keys and values at
each step, and a mask hides the columns of other hypotheses. So reordering hypotheses reorders the
mask and leaves the cache in place. To attention, they are queries over the same keys. Most of the
past is common to all hypotheses of a sentence: every few steps, and before the cache grows, columns
that are hidden from all of them are dropped.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.model.additive import additive_scores
from tfm.model.attention import Heads, MultiHeadAttention
from tfm.model.packing import copy_to_device

KeysValues = tuple[Tensor, Tensor]

# Above this beam size, one cache per hypothesis is faster than a shared, masked one.
_MAX_SHARING = 8
_FIRST_CAPACITY = 64
# Drop columns every few positions and before the cache grows, if at most this fraction remains.
_DROP_INTERVAL = 4
_DROP_THRESHOLD = 0.75
_DROP_THRESHOLD_IF_FULL = 0.9


class DecodingState(Protocol):
    """The decoding state of K hypotheses for each of B sentences, opaque to the search.

    Deep copies continue independently; so a state must not hold the model's weights.
    """

    def reorder(self, rows: Tensor) -> None:
        """Replace the hypotheses by a selection of them.

        Args:
            rows: [B', K'] indices among the B·K present hypotheses. The K' indices of a row belong
                to one sentence, and sentences keep their order.
        """


class LayerCache(Protocol):
    """The part of a cache that a decoder layer uses: of `DecoderCache`, or of an exported step."""

    def attend_to_past(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Add a position [R, d_model] to a layer, and attend to all up to it: [R, d_model]."""

    def attend_to_source(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Attend from a position [R, d_model] of a layer to the source: [R, d_model]."""


@dataclass(frozen=True)
class StepRows:
    """Which of the B·K hypotheses a step computes."""

    num_hypotheses: int  # B·K, or the number of positions B·T of one hypothesis each
    computed: Tensor | None = None  # [R] indices of the hypotheses that are computed; None for all

    @classmethod
    def of(cls, num_hypotheses: int, outputs: Tensor | None) -> "StepRows":
        """Choose to compute only the hypotheses [R] whose logits are returned; None for all."""
        if outputs is None or len(outputs) == num_hypotheses:
            return cls(num_hypotheses)
        return cls(num_hypotheses, computed=outputs)

    def select(self, x: Tensor) -> Tensor:
        """Select the rows of [B·K, …] to compute."""
        return x if self.computed is None else x.index_select(0, self.computed)

    def scatter(self, x: Tensor) -> Tensor:
        """Scatter computed rows to [B·K, …], with zeros for hypotheses that are not computed."""
        if self.computed is None:
            return x
        return x.new_zeros(self.num_hypotheses, *x.shape[1:]).index_copy_(0, self.computed, x)

    def select_outputs(self, x: Tensor) -> Tensor:
        """Select the computed rows whose logits are returned: [R, …]."""
        return x


@dataclass
class DecoderCache:
    """Keys and values of the source of each sentence and the past tokens of each hypothesis.

    The past is stored in G groups with equal numbers of columns: one group per sentence, with a
    `bias` that hides columns from hypotheses; or, if `bias` is None, one group per hypothesis.
    A backend may override how keys and values lie in memory: see `stored`.
    """

    # Each layer's keys [B, h, S, d_k] and values [B, h, S, d_v] of the source, as they are stored.
    memory: list[KeysValues]
    memory_bias: Tensor | None  # [B, 1, S] added to scores: -inf at padding; None if there is none
    num_sentences: int  # B
    window: int | None = None  # positions that a hypothesis sees, its newest included; None for all
    # Each layer's keys [G, h, capacity, d_k] and values [G, h, capacity, d_v].
    past: list[KeysValues] = field(default_factory=list)
    # [B, K, C] added to scores: -inf where a column is another hypothesis' past.
    bias: Tensor | None = None
    num_hypotheses: int = 1  # K
    position: int = 0  # number of tokens so far
    # The first column of each position, as long as none is dropped, and the number of columns C.
    offsets: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def for_sources(
        cls, memory: list[KeysValues], lengths: Tensor, *, window: int | None = None
    ) -> "DecoderCache":
        """Create the cache of sources of [B] lengths, before their first token.

        `memory` is each layer's keys [B, h, S, d_k] and values [B, h, S, d_v] of the sources.
        """
        columns = torch.arange(memory[0][0].size(2), device=lengths.device)
        padding = (columns >= lengths[:, None])[:, None]
        bias = _bias_hiding(padding) if padding.any() else None
        cached = [
            (cls.stored_source_keys(key), cls.stored(value).contiguous()) for key, value in memory
        ]
        return cls(cached, bias, num_sentences=len(lengths), window=window)

    @staticmethod
    def stored(x: Tensor) -> Tensor:
        """Return keys or values […, d] in the dtype in which they are stored."""
        return x

    @staticmethod
    def stored_source_keys(keys: Tensor) -> Tensor:
        """Return the keys [B, h, S, d_k] of sources as they are stored: sentences come first."""
        return keys.contiguous()

    def source_keys(self, index: int) -> Tensor:
        """Return the keys [B, h, d_k, S] of the sources in a layer."""
        return self.memory[index][0].mT

    @staticmethod
    def attend(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        """Attend to cached keys and join the heads; the n queries of a group share their keys.

        Args:
            query: [G, h, n, d_k]; its dtype may differ from the dtype of keys and values.
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, n or 1, C] added to scores: -inf where a key is hidden.
            weight: [h, d_k] of `additive_scores`; None for dot products.

        Returns:
            [G · n, h · d_v], of the query's dtype.
        """
        bias = None if bias is None else bias[:, None]
        queries = query.to(key.dtype)
        if weight is None:
            # On a CPU, SDPA misreads an fp32 mask of fp64 scores as fp64.
            bias = None if bias is None else bias.to(key.dtype)
            attended = F.scaled_dot_product_attention(queries, key.mT, value, attn_mask=bias)
        else:
            scores = additive_scores(queries, key.mT, weight)
            scores = scores if bias is None else scores + bias
            attended = scores.softmax(dim=-1).to(value.dtype) @ value
        return attended.to(query.dtype).transpose(1, 2).flatten(2).flatten(0, 1)

    @property
    def num_groups(self) -> int:
        """G."""
        return self.num_sentences * (self.num_hypotheses if self.bias is None else 1)

    def begin_step(self, rows: StepRows) -> None:
        """Reserve a column for the newest token of each hypothesis; layers compute these rows.

        Rows may be several positions of the only hypothesis of each sentence.
        """
        self._rows = rows
        num_new = 1
        num_positions = rows.num_hypotheses // (self.num_sentences * self.num_hypotheses)
        if num_positions == 1 and self.bias is not None:
            num_new = self.num_hypotheses
            is_own = torch.eye(num_new, dtype=torch.bool, device=self.bias.device)
            new_bias = _bias_hiding(~is_own).expand(self.num_sentences, -1, -1)
            self.bias = torch.cat([self.bias, new_bias], dim=2)
        end = self.offsets[-1] + num_new
        self.offsets += range(end, end + num_positions)
        self._step_bias = self.bias
        if num_positions > 1:
            self._step_bias = self._bias_of_positions(num_positions)

    def _bias_of_positions(self, num_positions: int) -> Tensor:
        """Return the bias [B or 1, T, C] of the new positions of one hypothesis."""
        device = self.memory[0][0].device
        columns = torch.arange(self.offsets[-1], device=device)
        hidden = columns > columns[-num_positions:, None]
        if self.window is not None:
            first = ([0] * (self.window - 1) + self.offsets)[self.position :][:num_positions]
            hidden |= columns < copy_to_device(torch.tensor(first), device)[:, None]
        bias = _bias_hiding(hidden)[None]
        if self.bias is None:
            return bias
        self.bias = F.pad(self.bias, (0, num_positions))
        return bias + self.bias

    def attend_to_past(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Add a position [R, d_model] to a layer, and attend to all up to it: [R, d_model]."""
        heads = attention.heads
        projected = self._rows.scatter(attention.input(x))
        query, key, value = split_joint(heads, projected, self.num_groups)
        start, end = self.offsets[self.position], self.offsets[-1]
        if index == len(self.past):
            stored = self.stored(key), self.stored(value)
            self.past.append((_with_capacity(stored[0], 0), _with_capacity(stored[1], 0)))
        elif end > self.past[index][0].size(2):  # doubled, so that copies are rare
            keys, values = self.past[index]
            self.past[index] = _with_capacity(keys, 2 * end), _with_capacity(values, 2 * end)
        keys, values = self.past[index]
        keys[:, :, start:end] = key
        values[:, :, start:end] = value
        first = 0 if self.window is None else self.offsets[max(0, self.position + 1 - self.window)]
        attended = self.attend(
            query,
            keys[:, :, first:end].mT,
            values[:, :, first:end],
            None if self._step_bias is None else self._step_bias[:, :, first:],
            attention.additive_weight,
        )
        out: Tensor = attention.output(self._rows.select(attended))
        return out

    def attend_to_source(self, index: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Attend from a position [R, d_model] of a layer to the source: [R, d_model]."""
        queries = self._rows.scatter(attention.input.queries(x))
        attended = self.attend(
            attention.heads.to_heads(queries, self.num_sentences),
            self.source_keys(index),
            self.memory[index][1],
            self.memory_bias,
            attention.additive_weight,
        )
        out: Tensor = attention.output(self._rows.select(attended))
        return out

    def reorder(self, rows: Tensor) -> None:
        """Replace the hypotheses by some of them [B', K']: see `DecodingState`."""
        if len(rows) < self.num_sentences:
            self._keep_sentences(rows[:, 0] // self.num_hypotheses)
            sentences = torch.arange(len(rows), device=rows.device)[:, None]
            rows = sentences * self.num_hypotheses + rows % self.num_hypotheses
        share = rows.size(1) <= _MAX_SHARING
        if self.bias is not None:
            if share:
                self.bias = self.bias.flatten(0, 1)[rows]
                if self.window is None:
                    self._drop_columns(self.bias)
            else:
                self._unshare(rows.flatten())
        elif share and self.num_hypotheses == 1 and rows.size(1) > 1:
            zero = torch.zeros((), device=rows.device)
            self.bias = zero.expand(*rows.shape, self.offsets[-1])
        elif rows.numel() != self.num_groups or self.num_hypotheses > 1:
            self._select_groups(rows.flatten())
        self.num_hypotheses = rows.size(1)

    def _drop_columns(self, bias: Tensor) -> None:
        """Drop columns that no hypothesis sees, if every sentence has enough of them."""
        num_columns = self.offsets[-1]
        is_full = num_columns + bias.size(1) > self.past[0][0].size(2)
        if not is_full and self.position % _DROP_INTERVAL:
            return
        is_seen = bias.isfinite().any(dim=1)  # [B, C]
        num_kept = int(is_seen.sum(dim=1).max())
        if num_kept > (_DROP_THRESHOLD_IF_FULL if is_full else _DROP_THRESHOLD) * num_columns:
            return
        # [B, C'] the columns that are seen, in order, and others up to the same number.
        columns = is_seen.byte().argsort(dim=1, descending=True, stable=True)[:, :num_kept]
        self.bias = bias.gather(2, columns[:, None].expand(-1, bias.size(1), -1))
        groups = torch.arange(len(bias), device=bias.device)[:, None]

        for keys_values in self.past:
            for cache in keys_values:
                cache[:, :, :num_kept] = cache.transpose(1, 2)[groups, columns].transpose(1, 2)
        self.offsets[-1] = num_kept

    def _keep_sentences(self, sentences: Tensor) -> None:
        groups = sentences
        if self.bias is None:
            hypotheses = torch.arange(self.num_hypotheses, device=sentences.device)
            groups = (sentences[:, None] * self.num_hypotheses + hypotheses).flatten()
        else:
            self.bias = self.bias[sentences]
        self._select_groups(groups)
        self.memory = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.memory
        ]
        if self.memory_bias is not None:
            self.memory_bias = self.memory_bias[sentences]
        self.num_sentences = len(sentences)

    def _select_groups(self, groups: Tensor) -> None:
        """Keep the columns in use of these groups, with the same capacity."""

        def select(cache: Tensor) -> Tensor:
            selected = cache.new_empty(len(groups), *cache.shape[1:])
            used = slice(self.offsets[-1])
            torch.index_select(cache[:, :, used], 0, groups, out=selected[:, :, used])
            return selected

        for index, (keys, values) in enumerate(self.past):  # of one layer at a time: less memory
            self.past[index] = select(keys), select(values)

    def _unshare(self, rows: Tensor) -> None:
        """Give each of these hypotheses its own cache, with the columns of its past."""
        assert self.bias is not None  # noqa: S101 - shared caches have a mask
        columns = (self.bias.flatten(0, 1)[rows] == 0).nonzero()[:, 1].view(len(rows), -1)
        sentences = (rows // self.num_hypotheses)[:, None]

        def select(cache: Tensor) -> Tensor:
            return _with_capacity(cache[sentences, :, columns].transpose(1, 2), 0)

        self.past = [(select(keys), select(values)) for keys, values in self.past]
        self.bias = None
        self.offsets = list(range(self.position + 1))


def keys_values(attention: MultiHeadAttention, memory: Tensor) -> KeysValues:
    """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
    heads, projected = attention.heads, attention.input.keys_values(memory)
    key, value = torch.split(projected, heads.widths[1:], dim=-1)
    return heads.to_heads(key, len(memory)), heads.to_heads(value, len(memory))


def split_joint(heads: Heads, projected: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split joint projections [G · n, …] into queries, keys and values [G, h, n, …]."""
    if len(set(heads.widths)) == 1:  # one view is faster than three
        shape = (num_groups, -1, 3, heads.num_heads, heads.widths[0] // heads.num_heads)
        query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        split = torch.split(projected, heads.widths, dim=-1)
        query, key, value = (heads.to_heads(x, num_groups) for x in split)
    return query, key, value


def _bias_hiding(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -math.inf)


def _with_capacity(x: Tensor, capacity: int) -> Tensor:
    """Copy columns [G, h, C, d] to a cache with at least `capacity` columns."""
    groups, num_heads, num_columns, width = x.shape
    capacity = max(_FIRST_CAPACITY, num_columns, capacity)
    cache = x.new_empty(groups, num_heads, capacity, width)
    cache[:, :, :num_columns] = x
    return cache
