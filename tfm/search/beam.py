"""Beam search with the GNMT length penalty (Vaswani et al. 2017, §6.1; Wu et al. 2016).

In diverse beam search (Vijayakumar et al. 2018), groups of a beam avoid each other.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses, Continuations, to_host
from tfm.search.hypotheses import Hypothesis, keep_best, nth_score
from tfm.search.spelling import Array
from tfm.vocabulary.subword import EOS


def beam_search(hypotheses: ActiveHypotheses, config: SearchConfig) -> list[list[Hypothesis]]:
    """Find the n best outputs of sentences, which start from one hypothesis each.

    At each step, all continuations of a sentence's hypotheses compete, and the 2K most probable of
    them are its candidates in a beam of K hypotheses. Candidates with EOS among the first K are
    finished and ranked by score. The K most probable candidates without EOS are continued, so that
    the beam stays full. An EOS of a lower rank is dropped, as in fairseq (Ott et al. 2019) and
    CTranslate2. A beam of one has one candidate: it is greedy search.

    A sentence is finished only if no active hypothesis can still enter its n best.
    """
    finished: list[list[Hypothesis]] = [[] for _ in hypotheses.sentences]
    while hypotheses.num_open:
        candidates = hypotheses.best_continuations(num_candidates(config.beam_size))
        continued = finish(hypotheses, candidates, finished, config.beam_size, config.n_best)
        hypotheses.advance(*continued)
    return finished


def num_candidates(beam_size: int) -> int:
    """Return how many continuations of a sentence are candidates: see `beam_search`."""
    return 2 * beam_size if beam_size > 1 else 1


def finish(
    hypotheses: ActiveHypotheses,
    candidates: Continuations,
    finished: list[list[Hypothesis]],
    beam_size: int,
    n_best: int,
) -> tuple[Continuations, Array]:
    """Add the outputs that candidates finish to the n best; return the others: see `beam_search`.

    Args:
        hypotheses: The hypotheses that are continued.
        candidates: Their best continuations [B, K'], best first.
        finished: The n best outputs of each sentence of the batch, best first.
        beam_size: K.
        n_best: n.

    Returns:
        The best candidates without EOS [B, K], and [B, K] whether each can still enter the n best.
        Not extending the others cannot change the n best: less probable continuations take their
        place.
    """
    ends = candidates.tokens == EOS
    is_first = np.arange(ends.shape[1]) < beam_size
    for sentence, hypothesis in hypotheses.finished(candidates, ends & is_first):
        keep_best(finished[sentence], hypothesis, n_best)
    order = ends.argsort(axis=1, kind="stable")[:, :beam_size]
    continued = Continuations(*(np.take_along_axis(x, order, axis=1) for x in candidates))
    to_beat = [nth_score(finished[sentence], n_best) for sentence in hypotheses.sentences]
    bounds = hypotheses.min_log_probs(to_beat)[:, None]
    return continued, (continued.tokens != EOS) & (continued.totals > bounds)


def diverse_beam_search(start: ActiveHypotheses, config: SearchConfig) -> list[list[Hypothesis]]:
    """Find diverse outputs of sentences, which start from one hypothesis each.

    Each group is a beam search with an equal share of the beam. At each step, groups choose one
    after another, and rank a token `diversity_strength` nats lower for each time that an earlier
    group chose it (Hamming diversity); if `diversity_steps` are set, only of the first tokens that
    no prefix forces. Log probabilities and scores remain the model's.

    Returns:
        At most `n_best` distinct hypotheses of each source: the best of each group, then the second
        best of each, and so on; all sorted by score, best first.
    """
    groups = [start.copy() for _ in range(config.num_groups)]
    finished: list[list[list[Hypothesis]]] = [[[] for _ in start.sentences] for _ in groups]
    # Each group keeps as many as its beam holds, so that `n_best` does not change the search.
    size = config.beam_size // config.num_groups
    num_free = start.to_device(np.zeros(len(start.sentences), np.int64))  # tokens not forced so far
    while any(group.num_open for group in groups):
        # A group may be ahead, because prefixes force the next tokens of all its open sentences.
        length = min(group.length for group in groups if group.num_open)
        times_chosen: Tensor | None = None  # [all sentences, V] by earlier groups
        is_free = num_free.new_zeros(len(num_free), dtype=torch.bool)
        for group, group_finished in zip(groups, finished, strict=True):
            if not group.num_open or group.length > length:
                continue
            sentences, past = map(group.to_device, (group.sentences, group.log_probs))
            log_probs = group.next_log_probs()
            if times_chosen is None:
                times_chosen = log_probs.new_zeros(len(start.sentences), log_probs.size(2))
            totals = past[:, :, None] + log_probs
            strengths = config.diversity_strength * totals.new_ones(len(num_free))
            if config.diversity_steps is not None:
                strengths[num_free >= config.diversity_steps] = 0.0
                is_free[sentences] |= totals.isfinite().flatten(1).sum(1) > 1
            candidates = _choose(totals, times_chosen, sentences, strengths, size)
            continued, can_improve = finish(group, candidates, group_finished, size, size)
            is_open = can_improve.any(axis=1, keepdims=True)
            is_possible = (continued.tokens != EOS) & np.isfinite(continued.totals)
            group.advance(continued, is_open & is_possible)
        num_free += is_free
    return [_merge_groups(of_groups, config.n_best) for of_groups in zip(*finished, strict=True)]


def _choose(
    totals: Tensor, times_chosen: Tensor, sentences: Tensor, strengths: Tensor, size: int
) -> Continuations:
    """Return the candidates of a group, and count the tokens of finished and continued ones.

    Args:
        totals: [B, K, V] log probabilities of all continuations.
        times_chosen: [all sentences, V] how often earlier groups chose a token.
        sentences: [B] indices of the sentences among all.
        strengths: [all sentences] nats subtracted from a token for each time that it was chosen.
        size: The size of the group's beam.
    """
    penalties = strengths[sentences, None] * times_chosen[sentences]
    ranked = (totals - penalties[:, None, :]).flatten(1)
    index = ranked.topk(min(num_candidates(size), ranked.size(1)), dim=1).indices
    totals, vocab_size = totals.flatten(1).gather(1, index), totals.size(2)
    tokens = index % vocab_size
    is_end, ones = tokens == EOS, torch.ones_like(tokens)
    # Of candidates with EOS, the rank among all counts; of others, the rank among themselves.
    rank = torch.where(is_end, ones.cumsum(1), (~is_end).cumsum(1))
    is_chosen = ((rank <= size) & totals.isfinite()).to(times_chosen.dtype)
    times_chosen.index_put_((sentences[:, None], tokens), is_chosen, accumulate=True)
    return Continuations(*to_host(totals, index // vocab_size, tokens))


def _merge_groups(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Return the n best of ranked lists: the best of each, then the second best, and so on."""
    best: list[Hypothesis] = []
    for rank in range(max(map(len, groups))):
        candidates: list[Hypothesis] = []
        for hypothesis in (group[rank] for group in groups if rank < len(group)):
            if all(hypothesis.tokens != other.tokens for other in best):
                keep_best(candidates, hypothesis, n_best - len(best))
        best += candidates
    return sorted(best, key=lambda hypothesis: -hypothesis.score)
