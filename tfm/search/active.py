"""The active hypotheses of a batch, which beam search, sampling and exact search extend."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS
from tfm.search.constraints import ANY, NEVER_PRODUCED, Constraints, Prefixes
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis, LengthPenalty, score_dtype

# Compact the batch when at most this fraction of its sentences is active: the caches are copied.
_COMPACTION_THRESHOLD = 0.75


class ActiveHypotheses:
    """The active hypotheses of a batch: K for each of B sentences, all of one length.

    A hypothesis that is not continued remains as a row that is not computed. A finished sentence
    remains until the batch is compacted.
    """

    def __init__(
        self,
        model: SearchableModel,
        source: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        prefixes: Prefixes | None,
    ) -> None:
        device, num_sentences = lengths.device, len(lengths)
        self.num_open = num_sentences  # number of sentences with an active hypothesis
        self.sentences = torch.arange(num_sentences)  # [B] indices in the batch, on the CPU
        self.tokens = torch.full((num_sentences, 1, 1), BOS, device=device)  # [B, K, t], BOS first
        # [B, K]; -inf for hypotheses that are not continued.
        self.log_probs = torch.zeros(num_sentences, 1, device=device)
        self._rows = torch.arange(num_sentences, device=device)  # [R] active ones among the B·K
        self._model = model
        self.state = model.start(source, lengths)
        self._constraints = Constraints.of(
            lengths, config, max_positions=model.max_positions, prefixes=prefixes
        )
        limits = self._constraints.max_lengths
        shortest, longest = map(int, limits.aminmax()) if num_sentences else (0, 0)
        self._penalty = LengthPenalty(config.length_penalty, max_length=longest, device=device)
        # Tokens are forced up to the longest prefix, and from the smallest maximum length.
        self._unforced = self._constraints.forced.size(1) - 1, shortest

    @property
    def length(self) -> int:
        """The length of an output that ends now: EOS counts, and BOS does not."""
        return self.tokens.size(2)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of an output, EOS included."""
        return int(self._constraints.max_lengths.amax())

    def copy(self) -> "ActiveHypotheses":
        """Return a copy that can be extended independently."""
        clone = copy.copy(self)
        clone.state = copy.deepcopy(self.state)
        return clone

    def next_log_probs(self) -> Tensor:
        """Run the model: return [B, K, V] log probabilities of the next token, -inf if excluded."""
        logits = self._model.step(self.tokens[:, :, -1], self.state)
        log_probs = logits.float().log_softmax(dim=-1)
        sentences, tokens = self._forced_tokens()
        forced = log_probs[sentences, :, tokens]
        log_probs[:, :, NEVER_PRODUCED] = -math.inf
        if self.length <= self._constraints.min_length:
            log_probs[:, :, EOS] = -math.inf
        log_probs[sentences] = -math.inf
        log_probs[sentences, :, tokens] = forced
        return log_probs

    def best_continuations(self, size: int) -> Continuations:
        """Run the model on the newest tokens; return at most `size` best continuations [B, K']."""
        logits = self._model.step(self.tokens[:, :, -1], self.state, self._rows)
        next_tokens = NextTokens.of(logits, NEVER_PRODUCED)
        sentences, tokens = self._forced_tokens()
        if self.length <= self._constraints.min_length:
            may_not_end = torch.ones(len(self.tokens), dtype=torch.bool, device=logits.device)
            may_not_end[sentences] = False
            next_tokens.rule_out(EOS, may_not_end[self._rows // self.tokens.size(1)])
        if sentences.numel():
            by_sentence = tokens.new_full((len(self.tokens),), ANY)
            by_sentence.index_copy_(0, sentences, tokens)
            by_row = by_sentence[self._rows // self.tokens.size(1)]
            next_tokens.force((by_row != ANY).nonzero()[:, 0], by_row[by_row != ANY])
        return next_tokens.best(self.log_probs, self._rows, size)

    def finished(
        self, totals: Tensor, parents: Tensor, ends: Tensor
    ) -> Iterator[tuple[int, Hypothesis]]:
        """Yield the outputs that continuations [B, K'] finish, each after its sentence's index.

        `totals` are log probabilities, `parents` say which of the K hypotheses each continues, and
        `ends` whether a continuation is EOS.
        """
        if not ends.any():
            return
        rows, columns = (ends & (totals > -math.inf)).nonzero().unbind(1)
        log_probs = totals[rows, columns]
        scores = self._penalty.scores(log_probs[:, None], torch.full_like(rows, self.length))
        for sentence, tokens, log_prob, [score] in zip(
            self.sentences[rows.cpu()].tolist(),
            self.tokens[rows, parents[rows, columns], 1:].tolist(),
            log_probs.tolist(),
            scores.tolist(),
            strict=True,
        ):
            yield sentence, Hypothesis(tokens=tuple(tokens), log_prob=log_prob, score=score)

    def min_log_probs(self, scores: Sequence[float]) -> Tensor:
        """Return the [B] log probabilities above which outputs can beat [B] scores."""
        max_lengths = self._constraints.max_lengths
        device = max_lengths.device
        to_beat = torch.tensor(scores, dtype=score_dtype(device), device=device)
        lengths = torch.full_like(max_lengths, self.length)
        return self._penalty.min_log_probs(to_beat, lengths, max_lengths)

    def advance(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Replace the hypotheses by continuations [B, K'] of these parents by these tokens.

        Log probabilities are -inf for hypotheses that are not continued.
        """
        is_active = log_probs > -math.inf
        active = is_active.flatten().nonzero().flatten()
        rows = parents  # [B, K'] indices among the B·K
        if len(parents) > 1:
            num_rows, num_hypotheses = self.log_probs.numel(), self.log_probs.size(1)
            firsts = torch.arange(0, num_rows, num_hypotheses, device=parents.device)
            rows = firsts[:, None] + parents
        self.num_open = len(rows)
        if len(active) < is_active.numel():
            is_open = is_active.any(dim=1)
            self.num_open = int(is_open.sum())
            if self.num_open <= _COMPACTION_THRESHOLD * len(rows):
                rows, tokens, log_probs = rows[is_open], tokens[is_open], log_probs[is_open]
                active = is_active[is_open].flatten().nonzero().flatten()
                self._constraints = self._constraints[is_open]
                self.sentences = self.sentences[is_open.cpu()]
        prefixes = self.tokens.flatten(0, 1).index_select(0, rows.flatten())
        extended = torch.cat([prefixes, tokens.reshape(-1, 1)], dim=1)
        self.tokens = extended.view(*tokens.shape, extended.size(1))
        self.log_probs = log_probs
        self._rows = active
        if self.num_open:
            self.state.reorder(rows)

    def _forced_tokens(self) -> tuple[Tensor, Tensor]:
        """Return the indices [N] of sentences whose next token is forced, and these tokens [N]."""
        if self._unforced[0] < self.length < self._unforced[1]:
            nothing = self._rows.new_empty(0)
            return nothing, nothing
        positions = torch.full_like(self._constraints.max_lengths, self.length - 1)
        tokens = self._constraints.forced_tokens(positions)
        sentences = (tokens != ANY).nonzero()[:, 0]
        return sentences, tokens[sentences]
