"""Beam search of sentences in slots: every step the same operations on the same memory.

What `Beams` decides on the host is decided here by tensors: what has ended, what it scores, what
can still improve. So nobody waits for a step, and all of it can be recorded once and replayed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.hypothesis import Hypothesis, length_penalty
from tfm.search.unfinished import (
    ANY,
    NEVER_PRODUCED,
    Prefixes,
    forced_tokens,
    greatest_lengths,
)


@dataclass(frozen=True, kw_only=True)
class SlotShape:
    """How much room there is.

    Attributes:
        num_slots: N.
        num_hypotheses: K, of each sentence.
        source_capacity: The most tokens of a source.
        capacity: T, the most tokens of an output, EOS included.
    """

    num_slots: int
    num_hypotheses: int
    source_capacity: int
    capacity: int


class Slots(Protocol):
    """Where a model stands in the sentences of N slots.

    Attributes:
        positions: [N] int64 number of tokens that the hypotheses of each slot have, without BOS.
    """

    positions: Tensor

    def reorder(self, parents: Tensor, goes_on: Tensor) -> None:
        """Go on with some hypotheses of each slot, in another order.

        Args:
            parents: [N, K] which of the present ones each continues.
            goes_on: [N] whether a slot's sentence does; others stay where they are.
        """


class SlotModel(Protocol):
    """A model that can decode in slots.

    Attributes:
        max_positions: The most tokens it can take in on either side; None if there is no limit.
    """

    max_positions: int | None

    def new_slots(
        self, *, num_slots: int, num_hypotheses: int, source_capacity: int, capacity: int
    ) -> Any:
        """Make room, as `SlotShape` says: `Slots`."""

    def occupy(self, slots: Any, places: Tensor, source: Tensor, lengths: Tensor) -> None:
        """Encode sources [B, S] of [B] lengths and put them into the [B] slots of these places."""

    def step_slots(self, tokens: Tensor, slots: Any) -> Tensor:
        """Take in the newest tokens [N, K]; return [N · K, V] logits of the next."""

    def look_through(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[R, blocks, block] → the greatest of each block, and the logarithm of the sum of all."""


@dataclass(frozen=True, kw_only=True)
class SlotSentences:
    """Sentences to be put into slots, on the CPU.

    Attributes:
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        forced: [B, P] the token that is forced at each position; `ANY` where none is.
        max_lengths: [B] the most tokens of an output, with EOS.
    """

    source: Tensor
    lengths: Tensor
    forced: Tensor
    max_lengths: Tensor

    @classmethod
    def of(
        cls,
        source: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        *,
        max_positions: int | None,
        prefixes: Prefixes | None = None,
    ) -> "SlotSentences":
        """A batch.

        Args:
            source: [B, S] token ids, closed by EOS and padded at the end.
            lengths: [B] their lengths, EOS included.
            config: Limits.
            max_positions: The most tokens that the model takes in on a side; None if there is no
                limit.
            prefixes: What outputs must start with; nothing if not given.
        """
        forced = forced_tokens(prefixes, len(lengths))
        return cls(
            source=source,
            lengths=lengths,
            forced=forced,
            max_lengths=greatest_lengths(lengths, forced, config, max_positions),
        )

    def part(self, rows: slice) -> "SlotSentences":
        """Some of them, padded to the longest of these."""
        lengths = self.lengths[rows]
        return SlotSentences(
            source=self.source[rows, : int(lengths.max())],
            lengths=lengths,
            forced=self.forced[rows],
            max_lengths=self.max_lengths[rows],
        )


class SlotBeams:
    """The beams of the sentences in N slots, and the best outputs they have ended with.

    Attributes:
        is_open: [N] whether a slot's sentence has a hypothesis that goes on.

    Args:
        model: What extends them, in evaluation mode.
        config: Beam and penalty.
        shape: How much room there is.
        device: Where the model is.
    """

    def __init__(
        self, model: SlotModel, config: SearchConfig, shape: SlotShape, device: torch.device
    ) -> None:
        num_slots, size, capacity = shape.num_slots, shape.num_hypotheses, shape.capacity
        self._model = model
        self._alpha = config.length_penalty
        self._slots: Slots = model.new_slots(**asdict(shape))

        def full(*sizes: int, value: float, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(sizes, value, dtype=dtype, device=device)

        # What goes on: closed slots have none but hypotheses of no probability.
        self.is_open = full(num_slots, value=False, dtype=torch.bool)
        self._newest = full(num_slots, size, value=BOS)
        self._tokens = full(num_slots, size, capacity, value=EOS)
        self._log_probs = full(num_slots, size, value=-math.inf, dtype=torch.float32)
        self._max_lengths = full(num_slots, value=1)
        self._forced = full(num_slots, capacity, value=ANY)
        # What has ended, best first.
        self._best_scores = full(num_slots, config.n_best, value=-math.inf, dtype=torch.float64)
        self._best_log_probs = full(num_slots, config.n_best, value=0.0, dtype=torch.float32)
        self._best_lengths = full(num_slots, config.n_best, value=1)
        self._best_tokens = full(num_slots, config.n_best, capacity, value=EOS)
        # What does not change.
        self._rows = torch.arange(num_slots * size, device=device)
        self._penalties = torch.tensor(
            [length_penalty(length, self._alpha) for length in range(capacity + 2)],
            dtype=torch.float64,
            device=device,
        )
        self._before_first = F.pad(
            full(1, value=0.0, dtype=torch.float32), (0, size - 1), value=-math.inf
        )

    def occupy(self, places: Sequence[int], sentences: SlotSentences) -> None:
        """Put sentences into as many slots, whose outputs are forgotten."""
        index = self._on_device(torch.tensor(places))
        source, lengths = map(self._on_device, (sentences.source, sentences.lengths))
        self._model.occupy(self._slots, index, source, lengths)
        missing = self._forced.size(1) - sentences.forced.size(1)
        forced = F.pad(sentences.forced, (0, missing), value=ANY)
        self._forced.index_copy_(0, index, self._on_device(forced))
        self._max_lengths.index_copy_(0, index, self._on_device(sentences.max_lengths))
        self._newest.index_fill_(0, index, BOS)
        self._log_probs.index_copy_(0, index, self._before_first.expand(len(places), -1))
        self._best_scores.index_fill_(0, index, -math.inf)
        self.is_open.index_fill_(0, index, True)

    def step(self) -> None:
        """Make each hypothesis that goes on a token longer."""
        positions = self._slots.positions
        lengths = positions + 1  # of outputs that end now, with EOS
        logits = self._model.step_slots(self._newest, self._slots)
        next_tokens = NextTokens.of(logits, NEVER_PRODUCED, self._model.look_through)
        totals, parents, tokens = self._chosen(next_tokens, positions)
        longer = self._tokens.gather(1, parents[:, :, None].expand_as(self._tokens))
        places = positions[:, None, None].expand(*tokens.shape, 1)
        longer.scatter_(2, places, tokens[:, :, None])
        ends = tokens == EOS
        self._keep_best(totals.masked_fill(~ends, -math.inf), lengths, longer)
        log_probs = totals.masked_fill(ends, -math.inf)
        # What can at best still be reached; see `Unfinished.needed_log_probs`.
        limits = self._max_lengths if self._alpha >= 0 else lengths + 1
        needed = self._best_scores[:, -1] * self._penalties[limits]
        log_probs.masked_fill_(log_probs <= needed[:, None], -math.inf)
        is_open = (log_probs > -math.inf).any(dim=1)
        self._slots.reorder(parents, is_open)
        for kept, new in (
            (self._newest, tokens),
            (self._tokens, longer),
            (self._log_probs, log_probs),
            (self.is_open, is_open),
        ):
            kept.copy_(new)

    def outputs(self, places: Sequence[int]) -> Tensor:
        """The best outputs of some slots as numbers on the CPU, of which to make `hypotheses`.

        Returns:
            [B, n, 3 + T] float64, best first: score, log probability, length with EOS, and tokens.
        """
        index = self._on_device(torch.tensor(places))
        kept = (
            self._best_scores[:, :, None],
            self._best_log_probs[:, :, None],
            self._best_lengths[:, :, None],
            self._best_tokens,
        )
        # Each number is one in float64, too, and so they are a single transfer.
        return torch.cat([each.index_select(0, index).double() for each in kept], dim=2).cpu()

    def _on_device(self, x: Tensor) -> Tensor:
        return x.to(self.is_open.device)

    def _chosen(self, next_tokens: NextTokens, positions: Tensor) -> Continuations:
        """The most probable continuations: [N, K], best first."""
        size = self._log_probs.size(1)
        free = next_tokens.best(self._log_probs, self._rows, size)
        forced = self._forced.gather(1, positions[:, None])
        at_limit = (positions + 1 >= self._max_lengths)[:, None]
        only = torch.where((forced == ANY) & at_limit, EOS, forced)
        tokens = only.clamp(min=0).expand(-1, size)
        log_probs = next_tokens.log_probs_of(tokens.flatten()).view_as(tokens)
        totals, parents = (self._log_probs + log_probs).sort(dim=1, descending=True, stable=True)
        is_free = only == ANY
        return Continuations(
            torch.where(is_free, free.totals, totals),
            torch.where(is_free, free.parents, parents),
            torch.where(is_free, free.tokens, tokens),
        )

    def _keep_best(self, log_probs: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Let outputs take their places among the n best, behind those that score the same.

        Args:
            log_probs: [N, K] of the outputs; -inf where there is none.
            lengths: [N] theirs, with EOS.
            tokens: [N, K, T] theirs.
        """
        scores = log_probs.double() / self._penalties[lengths][:, None]
        ranked, order = torch.cat([self._best_scores, scores], dim=1).sort(
            dim=1, descending=True, stable=True
        )
        n_best = self._best_scores.size(1)
        order = order[:, :n_best]
        for kept, new in (
            (self._best_log_probs, log_probs),
            (self._best_lengths, lengths[:, None].expand_as(log_probs)),
        ):
            kept.copy_(torch.cat([kept, new], dim=1).gather(1, order))
        index = order[:, :, None].expand_as(self._best_tokens)
        self._best_tokens.copy_(torch.cat([self._best_tokens, tokens], dim=1).gather(1, index))
        self._best_scores.copy_(ranked[:, :n_best])


def hypotheses(outputs: Tensor) -> list[list[Hypothesis]]:
    """What `SlotBeams.outputs` returned."""
    return [
        [
            Hypothesis(
                tokens=tuple(map(int, tokens[: int(length) - 1])), log_prob=log_prob, score=score
            )
            for score, log_prob, length, *tokens in best
            if score > -math.inf
        ]
        for best in outputs.tolist()
    ]
