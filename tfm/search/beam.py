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
    """Find the n best outputs of sources [B, S] of [B] lengths; arguments as in `search`.

    At each step, all continuations of a sentence's hypotheses compete. Of the `beam_size` most
    probable, those with EOS are finished and ranked by score, and the others are continued (a beam
    of one is greedy search). A sentence is finished only if no active hypothesis can still enter
    its n best.
    """
    beams = BeamSearchState(ActiveHypotheses(model, source, lengths, config, prefixes), config)
    while beams.hypotheses.num_open:
        beams.extend(beams.hypotheses.best_continuations(config.beam_size))
    return beams.finished


class BeamSearchState:
    """The beams of a batch of sentences, and their finished hypotheses.

    Args:
        hypotheses: The active hypotheses.
        config: Size of the n best list.
        prune: Whether to stop extending each hypothesis that cannot enter the n best. This cannot
            change the n best: less probable continuations take the place of the pruned ones.
    """

    def __init__(
        self, hypotheses: ActiveHypotheses, config: SearchConfig, *, prune: bool = True
    ) -> None:
        self.hypotheses = hypotheses
        # The n best finished hypotheses of each sentence, best first.
        self.finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
        self._n_best = config.n_best
        self._prune = prune

    def extend(self, chosen: Continuations) -> None:
        """Replace the hypotheses by chosen continuations [B, K'], and close finished sentences."""
        totals, parents, tokens = chosen
        ends = tokens == EOS
        log_probs = totals.masked_fill(ends, -math.inf)
        for sentence, hypothesis in self.hypotheses.finished(totals, parents, ends):
            keep_best(self.finished[sentence], hypothesis, self._n_best)
        sentences = self.hypotheses.sentences.tolist()
        to_beat = [nth_score(self.finished[i], self._n_best) for i in sentences]
        if max(to_beat) > -math.inf:
            can_improve = log_probs > self.hypotheses.min_log_probs(to_beat)[:, None]
            if not self._prune:
                can_improve = can_improve.any(dim=1, keepdim=True)
            log_probs = log_probs.masked_fill(~can_improve, -math.inf)
        self.hypotheses.advance(log_probs, parents, tokens)
