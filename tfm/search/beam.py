"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016)."""

import math
from typing import NamedTuple

from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.hypothesis import Hypothesis, keep_best, nth_score
from tfm.search.model import SearchableModel
from tfm.search.unfinished import Prefixes, Unfinished


def beam_search(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    prefixes: Prefixes | None = None,
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
        prefixes: What outputs must start with.

    Returns:
        For each source its `n_best` hypotheses, best first.
    """
    beams = Beams(Unfinished(model, source, lengths, config, prefixes), config)
    while beams.hypotheses.num_open:
        log_probs = beams.hypotheses.next_log_probs()
        beams.extend(beams.choose(log_probs))
    return beams.finished


class Continuations(NamedTuple):
    """The continuations that a beam goes on with or ends by; K' of them for each sentence."""

    totals: Tensor  # [B, K'] log probability
    parents: Tensor  # [B, K'] which of the K hypotheses it continues
    tokens: Tensor  # [B, K'] by which token


class Beams:
    """The beams of a batch of sentences.

    Attributes:
        hypotheses: What is being extended.
        finished: For each sentence of the batch its n best finished hypotheses, best first.

    Args:
        hypotheses: Where to start.
        config: Beam and penalty.
    """

    def __init__(self, hypotheses: Unfinished, config: SearchConfig) -> None:
        self.hypotheses = hypotheses
        self.finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
        self._config = config

    def choose(self, log_probs: Tensor, handicaps: Tensor | None = None) -> Continuations:
        """The most probable continuations of each sentence.

        Args:
            log_probs: [B, K, V] of the next token.
            handicaps: [B, V] nats that a token loses in this choice, and in nothing else.
        """
        totals = self.hypotheses.log_probs[:, :, None] + log_probs
        ranked = totals if handicaps is None else totals - handicaps[:, None, :]
        size = min(self._config.beam_size, totals[0].numel())
        index = ranked.flatten(1).topk(size, dim=1).indices
        num_tokens = totals.size(2)
        return Continuations(
            totals.flatten(1).gather(1, index), index // num_tokens, index % num_tokens
        )

    def extend(self, chosen: Continuations) -> None:
        """Make each hypothesis a token longer, and close the sentences that are done."""
        totals, parents, tokens = chosen
        ends = tokens == EOS
        for sentence, hypothesis in self.hypotheses.ended(totals, parents, ends):
            keep_best(self.finished[sentence], hypothesis, self._config.n_best)
        # Those that ended stay for one more step, as impossible ones, to keep the rows equal.
        log_probs = totals.masked_fill(ends, -math.inf)
        still_open = self._can_improve(log_probs.amax(dim=1))
        self.hypotheses.advance(log_probs, parents, tokens, still_open=still_open)

    def _can_improve(self, log_probs: Tensor) -> Tensor:
        """[B] whether the best hypothesis that goes on may still enter the n best."""
        found = (self.finished[sentence] for sentence in self.hypotheses.sentences.tolist())
        worst = [nth_score(best, self._config.n_best) for best in found]
        return log_probs > self.hypotheses.needed_log_probs(worst)
