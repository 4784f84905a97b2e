"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016)."""

import math
from typing import Generic

import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import BOS, EOS, PAD, UNK
from tfm.search.hypothesis import Hypothesis, length_penalty
from tfm.search.model import SearchableModel, State

_NEVER_PRODUCED = [PAD, BOS, UNK]


def beam_search(
    model: SearchableModel[State], source: Tensor, lengths: Tensor, config: SearchConfig
) -> list[list[Hypothesis]]:
    """Find the best outputs of a batch of sources.

    At each step all continuations of the hypotheses of a sentence compete. Of the `beam_size` most
    probable, those that end are finished and ranked by their score, the others go on: a beam of
    one is greedy. A sentence is done only when none that goes on can still enter its n best.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Beam, penalty and limits.

    Returns:
        For each source its `n_best` hypotheses, best first.
    """
    beams = _Beams(model.start(source, lengths), lengths, config)
    while beams.num_open:
        beams.extend(model.step(beams.last_tokens(), beams.state))
    return beams.finished


class _Beams(Generic[State]):
    """The hypotheses of those sentences of a batch that are still open.

    B counts the open sentences, K the hypotheses of each, t their tokens with BOS.
    """

    def __init__(self, state: State, lengths: Tensor, config: SearchConfig) -> None:
        self.state = state
        self.finished: list[list[Hypothesis]] = [[] for _ in range(len(lengths))]
        self._config = config
        self._sentences = torch.arange(len(lengths))  # [B] their places in the batch
        self._max_lengths = lengths + config.max_extra_length  # [B] with EOS, as in the source
        self._tokens = torch.full((len(lengths), 1, 1), BOS, device=lengths.device)  # [B, K, t]
        self._log_probs = torch.zeros(len(lengths), 1, device=lengths.device)  # [B, K]

    @property
    def num_open(self) -> int:
        """B: the number of open sentences."""
        return len(self._sentences)

    def last_tokens(self) -> Tensor:
        """[B, K] the newest token of each hypothesis."""
        return self._tokens[:, :, -1]

    def extend(self, logits: Tensor) -> None:
        """Make each hypothesis a token longer, and close the sentences that are done.

        Args:
            logits: [B, K, V] of the next token.
        """
        log_probs = self._allowed(logits.float().log_softmax(dim=-1))
        totals = (self._log_probs[:, :, None] + log_probs).flatten(1)
        totals, index = totals.topk(min(self._config.beam_size, totals.size(1)), dim=1)
        parents, tokens = index // logits.size(2), index % logits.size(2)
        ends = tokens == EOS
        self._finish(totals, parents, ends)
        # Those that ended stay for one more step, as impossible ones, to keep the rows equal.
        self._advance(totals.masked_fill(ends, -math.inf), parents, tokens)

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """Rule out tokens that are never produced, and all but EOS at the greatest length."""
        log_probs[:, :, _NEVER_PRODUCED] = -math.inf
        at_limit = self._max_lengths <= self._tokens.size(2)
        if at_limit.any():
            end = log_probs[:, :, EOS].clone()
            log_probs[at_limit] = -math.inf
            log_probs[:, :, EOS] = end
        return log_probs

    def _finish(self, totals: Tensor, parents: Tensor, ends: Tensor) -> None:
        """Put the candidates that end among the n best of their sentences."""
        # EOS makes up for BOS: t is the length of an output that ends now.
        penalty = length_penalty(self._tokens.size(2), self._config.length_penalty)
        rows, columns = (ends & totals.isfinite()).nonzero(as_tuple=True)
        sentences = self._sentences[rows.cpu()].tolist()
        tokens = self._tokens[rows, parents[rows, columns], 1:].tolist()
        log_probs = totals[rows, columns].tolist()
        for sentence, ids, log_prob in zip(sentences, tokens, log_probs, strict=True):
            best = self.finished[sentence]
            best.append(Hypothesis(tokens=tuple(ids), log_prob=log_prob, score=log_prob / penalty))
            best.sort(key=lambda hypothesis: -hypothesis.score)
            del best[self._config.n_best :]

    def _advance(self, log_probs: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Go on with the chosen continuations of the sentences that are not done.

        Args:
            log_probs: [B, K'] of each continuation.
            parents: [B, K'] which of the K hypotheses it continues.
            tokens: [B, K'] by which token.
        """
        still_open = self._can_improve(log_probs.amax(dim=1))
        first_rows = torch.arange(len(parents), device=parents.device) * self._tokens.size(1)
        rows = (first_rows[:, None] + parents)[still_open]
        past = self._tokens.flatten(0, 1)[rows]
        self._tokens = torch.cat([past, tokens[still_open][:, :, None]], dim=2)
        self._log_probs = log_probs[still_open]
        self._max_lengths = self._max_lengths[still_open]
        self._sentences = self._sentences[still_open.cpu()]
        if self.num_open:
            self.state.reorder(rows)

    def _can_improve(self, log_probs: Tensor) -> Tensor:
        """[B] whether the best hypothesis that goes on may still enter the n best.

        Its log probability can only fall, and the penalty divides it by most at the greatest
        length (or, with a negative α, at the next): no score can be higher than that.
        """
        alpha = self._config.length_penalty
        next_length = torch.full_like(self._max_lengths, self._tokens.size(2) + 1)
        length = self._max_lengths if alpha >= 0 else next_length
        highest = log_probs.double() / ((5 + length.double()) / 6) ** alpha
        found = (self.finished[sentence] for sentence in self._sentences.tolist())
        worst = [h[-1].score if len(h) == self._config.n_best else -math.inf for h in found]
        return highest > highest.new_tensor(worst)
