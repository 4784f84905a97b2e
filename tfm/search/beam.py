"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016)."""

import math

from torch import Tensor

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.active import ActiveHypotheses
from tfm.search.constraints import Prefixes
from tfm.search.continuations import Continuations
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis, keep_best, nth_score


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
    probable, those that end are finished and ranked by their score, the others are continued: a
    beam of one is greedy. A sentence is finished only when no hypothesis that is continued can
    still enter its n best.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Beam, penalty and limits.
        prefixes: What outputs must start with.

    Returns:
        For each source its `n_best` hypotheses, best first.
    """
    beams = BeamSearchState(ActiveHypotheses(model, source, lengths, config, prefixes), config)
    while beams.hypotheses.num_open:
        beams.extend(beams.hypotheses.best_continuations(config.beam_size))
    return beams.finished


class BeamSearchState:
    """The beams of a batch of sentences, and what they have finished.

    Attributes:
        hypotheses: The hypotheses that are extended.
        finished: For each sentence of the batch its n best finished hypotheses, best first.

    Args:
        hypotheses: Where to start.
        config: Beam and penalty.
        prune: Whether to leave out single hypotheses that cannot enter the n best. It does not
            change these: whatever takes the place of such a hypothesis is less probable still.
    """

    def __init__(
        self, hypotheses: ActiveHypotheses, config: SearchConfig, *, prune: bool = True
    ) -> None:
        self.hypotheses = hypotheses
        self.finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
        self._config = config
        self._prune = prune

    def extend(self, chosen: Continuations) -> None:
        """Make each hypothesis a token longer, and close the sentences that are finished."""
        totals, parents, tokens = chosen
        ends = tokens == EOS
        log_probs = totals.masked_fill(ends, -math.inf)
        n_best = self._config.n_best
        for sentence, hypothesis in self.hypotheses.finished(totals, parents, ends):
            keep_best(self.finished[sentence], hypothesis, n_best)
        to_beat = [nth_score(self.finished[i], n_best) for i in self.hypotheses.sentences.tolist()]
        if max(to_beat) > -math.inf:
            can_improve = log_probs > self.hypotheses.min_log_probs(to_beat)[:, None]
            if not self._prune:
                can_improve = can_improve.any(dim=1, keepdim=True)
            log_probs = log_probs.masked_fill(~can_improve, -math.inf)
        self.hypotheses.advance(log_probs, parents, tokens)
