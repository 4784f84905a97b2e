"""Beam search in slots: every step launches the same operations on the same memory.

Unlike `BeamSearchState`, it keeps finished hypotheses and their scores in tensors. So the host
waits for no step, and a step can be recorded once and replayed.
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
    """The beams of the sentences in N slots, and their best finished outputs."""

    def __init__(
        self, model: Transformer, config: SearchConfig, shape: SlotShape, device: torch.device
    ) -> None:
        num_slots, size, capacity = shape.num_slots, shape.num_hypotheses, shape.capacity
        self._model = model
        self._cache = model.new_slots(shape)

        def full(*sizes: int, value: float, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(sizes, value, dtype=dtype, device=device)

        # [N] whether a sentence has active hypotheses; else all have a log probability of -inf.
        self.is_open = full(num_slots, value=False, dtype=torch.bool)
        self._newest = full(num_slots, size, value=BOS)
        self._tokens = full(num_slots, size, capacity, value=EOS)
        self._log_probs = full(num_slots, size, value=-math.inf, dtype=torch.float32)
        self._constraints = Constraints(
            forced=full(num_slots, capacity, value=ANY),
            max_lengths=full(num_slots, value=1),
            min_length=config.min_length,
        )
        # Finished outputs, best first.
        self._best_scores = full(num_slots, config.n_best, value=-math.inf, dtype=torch.float64)
        self._best_log_probs = full(num_slots, config.n_best, value=0.0, dtype=torch.float32)
        self._best_lengths = full(num_slots, config.n_best, value=1)
        self._best_tokens = full(num_slots, config.n_best, capacity, value=EOS)
        # Constants.
        self._rows = torch.arange(num_slots * size, device=device)
        self._penalty = LengthPenalty(config.length_penalty, max_length=capacity, device=device)
        self._before_first = F.pad(
            full(1, value=0.0, dtype=torch.float32), (0, size - 1), value=-math.inf
        )

    def prefill(
        self, slots: Sequence[int], source: Tensor, lengths: Tensor, constraints: Constraints
    ) -> None:
        """Put sources [B, S] of [B] lengths, which are on the CPU, into B slots."""
        index = self._on_device(torch.tensor(slots))
        self._model.prefill(self._cache, index, *map(self._on_device, (source, lengths)))
        padding = self._constraints.forced.size(1) - constraints.forced.size(1)
        forced = F.pad(constraints.forced, (0, padding), value=ANY)
        self._constraints.forced.index_copy_(0, index, self._on_device(forced))
        max_lengths = self._on_device(constraints.max_lengths)
        self._constraints.max_lengths.index_copy_(0, index, max_lengths)
        self._newest.index_fill_(0, index, BOS)
        self._log_probs.index_copy_(0, index, self._before_first.expand(len(slots), -1))
        self._best_scores.index_fill_(0, index, -math.inf)
        self.is_open.index_fill_(0, index, True)

    def step(self) -> None:
        """Extend each active hypothesis by a token."""
        positions = self._cache.positions
        lengths = positions + 1  # of outputs that end now, EOS included
        logits = self._model.step_slots(self._newest, self._cache)
        reduce_blocks = self._model.backend.block_max_and_logsumexp
        next_tokens = NextTokens.of(logits, NEVER_PRODUCED, reduce_blocks)
        if self._constraints.min_length:
            is_at_limit = lengths >= self._constraints.max_lengths
            is_too_short = positions < self._constraints.min_length
            num_hypotheses = self._log_probs.size(1)
            rows = (is_too_short & ~is_at_limit).repeat_interleave(num_hypotheses)
            next_tokens.rule_out(EOS, rows)
        totals, parents, tokens = self._choose(next_tokens, positions)
        extended = self._tokens.gather(1, parents[:, :, None].expand_as(self._tokens))
        index = positions[:, None, None].expand(*tokens.shape, 1)
        extended.scatter_(2, index, tokens[:, :, None])
        ends = tokens == EOS
        self._keep_best(totals.masked_fill(~ends, -math.inf), lengths, extended)
        log_probs = totals.masked_fill(ends, -math.inf)
        min_log_probs = self._penalty.min_log_probs(
            self._best_scores[:, -1], lengths, self._constraints.max_lengths
        )
        log_probs.masked_fill_(log_probs <= min_log_probs[:, None], -math.inf)
        is_open = (log_probs > -math.inf).any(dim=1)
        self._cache.reorder(parents, is_open)
        self._newest.copy_(tokens)
        self._tokens.copy_(extended)
        self._log_probs.copy_(log_probs)
        self.is_open.copy_(is_open)

    def outputs(self, slots: Sequence[int]) -> Tensor:
        """Return the best outputs of B slots, [B, n, 3 + T] on the CPU, for `hypotheses` to decode.

        They are, best first: score, log probability, length with EOS, and tokens, as float64.
        """
        index = self._on_device(torch.tensor(slots))
        kept = (
            self._best_scores[:, :, None],
            self._best_log_probs[:, :, None],
            self._best_lengths[:, :, None],
            self._best_tokens,
        )
        # float64 represents all of them exactly, so they need only one transfer.
        return torch.cat([x.index_select(0, index).double() for x in kept], dim=2).cpu()

    def _on_device(self, x: Tensor) -> Tensor:
        return x.to(self.is_open.device)

    def _choose(self, next_tokens: NextTokens, positions: Tensor) -> Continuations:
        """Return the most probable continuations [N, K], best first; positions [N]."""
        size = self._log_probs.size(1)
        best = next_tokens.best(self._log_probs, self._rows, size)
        forced = self._constraints.forced_tokens(positions)[:, None]
        tokens = forced.clamp(min=0).expand(-1, size)
        log_probs = next_tokens.log_probs_of(tokens.flatten()).view_as(tokens)
        totals, parents = (self._log_probs + log_probs).sort(dim=1, descending=True, stable=True)
        is_free, only = forced == ANY, (totals, parents, tokens)
        return Continuations(
            *(torch.where(is_free, *pair) for pair in zip(best, only, strict=True))
        )

    def _keep_best(self, log_probs: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Insert outputs [N, K, T] into the n best, after earlier ones with the same score.

        Log probabilities [N, K] are -inf for hypotheses that have not ended; lengths are [N].
        """
        scores = self._penalty.scores(log_probs, lengths)
        candidates = torch.cat([self._best_scores, scores], dim=1)
        ranked, order = candidates.sort(dim=1, descending=True, stable=True)
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
    """Decode the result of `SlotBeams.outputs`, [B, n, 3 + T]."""
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
