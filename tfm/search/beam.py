"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016)."""

from tfm.config import SearchConfig
from tfm.data.subword import EOS
from tfm.search.active import ActiveHypotheses, Array, Continuations
from tfm.search.scoring import Hypothesis, keep_best, nth_score


def beam_search(hypotheses: ActiveHypotheses, config: SearchConfig) -> list[list[Hypothesis]]:
    """Find the n best outputs of sentences, which start from one hypothesis each.

    At each step, all continuations of a sentence's hypotheses compete. Of the `beam_size` most
    probable, those with EOS are finished and ranked by score, and the others are continued (a beam
    of one is greedy search). A sentence is finished only if no active hypothesis can still enter
    its n best.
    """
    finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
    while hypotheses.num_open:
        chosen = hypotheses.best_continuations(config.beam_size)
        can_improve = finish(hypotheses, chosen, finished, config.n_best)
        hypotheses.advance(chosen, can_improve)
    return finished


def finish(
    hypotheses: ActiveHypotheses,
    chosen: Continuations,
    finished: list[list[Hypothesis]],
    n_best: int,
) -> Array:
    """Add the outputs that continuations [B, K'] finish to the n best of their sentences.

    Args:
        hypotheses: The hypotheses that are continued.
        chosen: Their continuations.
        finished: The n best outputs of each sentence of the batch, best first.
        n_best: n.

    Returns:
        [B, K'] whether a continuation can still enter the n best. Not extending the others cannot
        change the n best: less probable continuations take their place.
    """
    ends = chosen.tokens == EOS
    for sentence, hypothesis in hypotheses.finished(chosen, ends):
        keep_best(finished[sentence], hypothesis, n_best)
    to_beat = [nth_score(finished[sentence], n_best) for sentence in hypotheses.sentences]
    can_improve: Array = ~ends & (chosen.totals > hypotheses.min_log_probs(to_beat)[:, None])
    return can_improve
