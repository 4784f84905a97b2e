"""Beam search of sentences in slots: every step the same operations on the same memory.

What `BeamSearchState` decides on the host is decided here by tensors: which hypotheses have ended,
their scores, whether others can still improve on them. So the host waits for no step, and a step
can be recorded once and replayed.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS
from tfm.model.slots import SlotShape
from tfm.model.transformer import Transformer
from tfm.search.constraints import ANY, NEVER_PRODUCED, Constraints
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.scoring import Hypothesis, LengthPenalty


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
        self, model: Transformer, config: SearchConfig, shape: SlotShape, device: torch.device
    ) -> None:
        num_slots, size, capacity = shape.num_slots, shape.num_hypotheses, shape.capacity
        self._model = model
        self._slots = model.new_slots(shape)

        def full(*sizes: int, value: float, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(sizes, value, dtype=dtype, device=device)

        # What goes on: closed slots have none but hypotheses of no probability.
        self.is_open = full(num_slots, value=False, dtype=torch.bool)
        self._newest = full(num_slots, size, value=BOS)
        self._tokens = full(num_slots, size, capacity, value=EOS)
        self._log_probs = full(num_slots, size, value=-math.inf, dtype=torch.float32)
        self._constraints = Constraints(
            forced=full(num_slots, capacity, value=ANY), max_lengths=full(num_slots, value=1)
        )
        # What has ended, best first.
        self._best_scores = full(num_slots, config.n_best, value=-math.inf, dtype=torch.float64)
        self._best_log_probs = full(num_slots, config.n_best, value=0.0, dtype=torch.float32)
        self._best_lengths = full(num_slots, config.n_best, value=1)
        self._best_tokens = full(num_slots, config.n_best, capacity, value=EOS)
        # What does not change.
        self._rows = torch.arange(num_slots * size, device=device)
        self._penalty = LengthPenalty(config.length_penalty, max_length=capacity, device=device)
        self._before_first = F.pad(
            full(1, value=0.0, dtype=torch.float32), (0, size - 1), value=-math.inf
        )

    def prefill(
        self, places: Sequence[int], source: Tensor, lengths: Tensor, constraints: Constraints
    ) -> None:
        """Put sentences into slots, and forget the outputs that were found there.

        Args:
            places: B slots.
            source: [B, S] token ids on the CPU, closed by EOS and padded at the end.
            lengths: [B] their lengths, EOS included.
            constraints: Theirs.
        """
        index = self._on_device(torch.tensor(places))
        self._model.prefill(self._slots, index, *map(self._on_device, (source, lengths)))
        missing = self._constraints.forced.size(1) - constraints.forced.size(1)
        forced = F.pad(constraints.forced, (0, missing), value=ANY)
        self._constraints.forced.index_copy_(0, index, self._on_device(forced))
        max_lengths = self._on_device(constraints.max_lengths)
        self._constraints.max_lengths.index_copy_(0, index, max_lengths)
        self._newest.index_fill_(0, index, BOS)
        self._log_probs.index_copy_(0, index, self._before_first.expand(len(places), -1))
        self._best_scores.index_fill_(0, index, -math.inf)
        self.is_open.index_fill_(0, index, True)

    def step(self) -> None:
        """Make each hypothesis that goes on a token longer."""
        positions = self._slots.positions
        lengths = positions + 1  # of outputs that end now, with EOS
        logits = self._model.step_slots(self._newest, self._slots)
        next_tokens = NextTokens.of(logits, NEVER_PRODUCED, self._model.block_max_and_logsumexp)
        totals, parents, tokens = self._chosen(next_tokens, positions)
        longer = self._tokens.gather(1, parents[:, :, None].expand_as(self._tokens))
        places = positions[:, None, None].expand(*tokens.shape, 1)
        longer.scatter_(2, places, tokens[:, :, None])
        ends = tokens == EOS
        self._keep_best(totals.masked_fill(~ends, -math.inf), lengths, longer)
        log_probs = totals.masked_fill(ends, -math.inf)
        min_log_probs = self._penalty.min_log_probs(
            self._best_scores[:, -1], lengths, self._constraints.max_lengths
        )
        log_probs.masked_fill_(log_probs <= min_log_probs[:, None], -math.inf)
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
        only = self._constraints.only_tokens(positions)[:, None]
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
        scores = self._penalty.scores(log_probs, lengths)
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
