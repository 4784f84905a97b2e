"""The hypotheses that a search extends: what beam search, sampling and exact search share."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS
from tfm.search.constraints import ANY, NEVER_PRODUCED, Constraints, Prefixes
from tfm.search.continuations import Continuations, NextTokens
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis, LengthPenalty

# Compact the batch when at most this fraction of its sentences is active: the caches are copied.
_COMPACTION_THRESHOLD = 0.75


class ActiveHypotheses:
    """The hypotheses of a batch that a search extends, all of one length.

    B counts the sentences, K the hypotheses of each, t their tokens with BOS. A hypothesis that
    cannot be continued stays as a row that is not computed; so does a sentence that is finished,
    until enough of them are worth removing.

    Attributes:
        state: Where the model stands.
        num_open: Number of sentences with a hypothesis that is continued.
        sentences: [B] their places in the batch, on the CPU.
        tokens: [B, K, t] token ids, BOS first.
        log_probs: [B, K] log probabilities; -inf for one that cannot be continued.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Penalty and limits.
        prefixes: What outputs must start with; nothing if not given.
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
        self.num_open = num_sentences
        self.sentences = torch.arange(num_sentences)
        self.tokens = torch.full((num_sentences, 1, 1), BOS, device=device)
        self.log_probs = torch.zeros(num_sentences, 1, device=device)
        self._rows = torch.arange(num_sentences, device=device)  # [R] those that are continued
        self._model = model
        self.state = model.start(source, lengths)
        self._constraints = Constraints.of(
            lengths, config, max_positions=model.max_positions, prefixes=prefixes
        )
        limits = self._constraints.max_lengths
        self._penalty = LengthPenalty(
            config.length_penalty,
            max_length=int(limits.max()) if num_sentences else 0,
            device=device,
        )
        # Up to where a prefix forces tokens, and from where a greatest length does.
        self._free = (
            self._constraints.forced.size(1) - 1,
            int(limits.min()) if num_sentences else 0,
        )

    @property
    def length(self) -> int:
        """Of an output that ends now: EOS makes up for BOS."""
        return self.tokens.size(2)

    @property
    def max_length(self) -> int:
        """The greatest number of tokens of an output, EOS included."""
        return int(self._constraints.max_lengths.amax())

    def copy(self) -> "ActiveHypotheses":
        """The same hypotheses, which can be extended independently of these."""
        other = copy.copy(self)
        other.state = copy.deepcopy(self.state)
        return other

    def next_log_probs(self) -> Tensor:
        """Take in the newest tokens.

        Returns:
            [B, K, V] the model's log probabilities of the next token; -inf where it is ruled out.
        """
        logits = self._model.step(self.tokens[:, :, -1], self.state)
        log_probs = logits.float().log_softmax(dim=-1)
        rows, only = self._forced_rows()
        kept = log_probs[rows, :, only]
        log_probs[:, :, NEVER_PRODUCED] = -math.inf
        log_probs[rows] = -math.inf
        log_probs[rows, :, only] = kept
        return log_probs

    def best_continuations(self, size: int) -> Continuations:
        """Take in the newest tokens; return the most probable continuations, best first.

        Args:
            size: How many to return for each sentence, if there are as many.
        """
        logits = self._model.step(self.tokens[:, :, -1], self.state, self._rows)
        next_tokens = NextTokens.of(logits, NEVER_PRODUCED)
        forced, only = self._forced_rows()
        if forced.numel():
            of_sentences = only.new_full((len(self.tokens),), ANY).index_copy_(0, forced, only)
            of_rows = of_sentences[self._rows // self.tokens.size(1)]
            next_tokens.force((of_rows != ANY).nonzero()[:, 0], of_rows[of_rows != ANY])
        return next_tokens.best(self.log_probs, self._rows, size)

    def finished(
        self, totals: Tensor, parents: Tensor, ends: Tensor
    ) -> Iterator[tuple[int, Hypothesis]]:
        """The finished outputs among some continuations.

        Args:
            totals: [B, K'] log probabilities of the continuations.
            parents: [B, K'] which of the K hypotheses each continues.
            ends: [B, K'] whether by EOS.

        Yields:
            The place of the sentence in the batch, and a hypothesis.
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
        """[B] float64 log probabilities above which outputs may still have better scores.

        Args:
            scores: For each open sentence the score to beat.
        """
        max_lengths = self._constraints.max_lengths
        to_beat = torch.tensor(scores, dtype=torch.float64, device=max_lengths.device)
        lengths = torch.full_like(max_lengths, self.length)
        return self._penalty.min_log_probs(to_beat, lengths, max_lengths)

    def advance(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Replace the hypotheses by chosen continuations.

        Args:
            log_probs: [B, K'] of each continuation; -inf if it is not to be continued itself.
            parents: [B, K'] which of the K hypotheses it continues.
            tokens: [B, K'] by which token.
        """
        is_continued = log_probs > -math.inf
        continued = is_continued.flatten().nonzero().flatten()
        rows = parents  # [B, K'] index among the B·K
        if len(parents) > 1:
            num_rows, num_hypotheses = self.log_probs.numel(), self.log_probs.size(1)
            firsts = torch.arange(0, num_rows, num_hypotheses, device=parents.device)
            rows = firsts[:, None] + parents
        self.num_open = len(rows)
        if len(continued) < is_continued.numel():
            is_open = is_continued.any(dim=1)
            self.num_open = int(is_open.sum())
            if self.num_open <= _COMPACTION_THRESHOLD * len(rows):
                rows, tokens, log_probs = rows[is_open], tokens[is_open], log_probs[is_open]
                continued = is_continued[is_open].flatten().nonzero().flatten()
                self._constraints = self._constraints[is_open]
                self.sentences = self.sentences[is_open.cpu()]
        before = self.tokens.flatten(0, 1).index_select(0, rows.flatten())
        longer = torch.cat([before, tokens.reshape(-1, 1)], dim=1)
        self.tokens = longer.view(*tokens.shape, longer.size(1))
        self.log_probs = log_probs
        self._rows = continued
        if self.num_open:
            self.state.reorder(rows)

    def _forced_rows(self) -> tuple[Tensor, Tensor]:
        """Which of the B sentences have only one token that may come next, and which it is."""
        if self._free[0] < self.length < self._free[1]:
            nothing = self._rows.new_empty(0)
            return nothing, nothing
        positions = torch.full_like(self._constraints.max_lengths, self.length - 1)
        only = self._constraints.only_tokens(positions)
        rows = (only != ANY).nonzero()[:, 0]
        return rows, only[rows]
