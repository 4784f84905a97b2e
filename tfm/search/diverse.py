"""Diverse beam search (Vijayakumar et al. 2018): groups of a beam that avoid each other."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tfm.config import SearchConfig
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import BeamSearchState
from tfm.search.constraints import Prefixes
from tfm.search.continuations import Continuations
from tfm.search.model import SearchableModel
from tfm.search.scoring import Hypothesis, keep_best


def diverse_beam_search(
    model: SearchableModel,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    prefixes: Prefixes | None = None,
) -> list[list[Hypothesis]]:
    """Find diverse outputs of sources [B, S] of [B] lengths; arguments as in `search`.

    Each group is a beam search with an equal share of the beam. At each step, groups choose one
    after another, and rank a token `diversity_strength` nats lower for each time that an earlier
    group chose it (Hamming diversity). Log probabilities and scores remain the model's.

    Returns:
        At most `n_best` distinct hypotheses of each source: the best of each group, then the second
        best of each, and so on; all sorted by score, best first.
    """
    size = config.beam_size // config.num_groups
    # Each group keeps as many as its beam holds, so that `n_best` does not change the search.
    group_config = replace(config, beam_size=size, n_best=size, num_groups=1)
    start = ActiveHypotheses(model, source, lengths, config, prefixes)
    groups = [
        BeamSearchState(start.copy(), group_config, prune=False) for _ in range(config.num_groups)
    ]
    while any(group.hypotheses.num_open for group in groups):
        _step(groups, len(lengths), size=size, strength=config.diversity_strength)
    return [
        _merge_groups(found, config.n_best)
        for found in zip(*(group.finished for group in groups), strict=True)
    ]


def _step(
    groups: Sequence[BeamSearchState], num_sentences: int, *, size: int, strength: float
) -> None:
    """Let every group make a step; later groups know the choices of earlier ones."""
    times_chosen: Tensor | None = None  # [all sentences, V]
    for group in groups:
        if not group.hypotheses.num_open:
            continue
        log_probs = group.hypotheses.next_log_probs()
        if times_chosen is None:
            times_chosen = log_probs.new_zeros(num_sentences, log_probs.size(2))
        sentences = group.hypotheses.sentences.to(log_probs.device)
        totals = group.hypotheses.log_probs[:, :, None] + log_probs
        penalties = strength * times_chosen[sentences]
        ranked = (totals - penalties[:, None, :]).flatten(1)
        index = ranked.topk(min(size, ranked.size(1)), dim=1).indices
        vocab_size = totals.size(2)
        chosen = Continuations(
            totals.flatten(1).gather(1, index), index // vocab_size, index % vocab_size
        )
        is_possible = chosen.totals.isfinite().to(times_chosen.dtype)
        times_chosen.index_put_((sentences[:, None], chosen.tokens), is_possible, accumulate=True)
        group.extend(chosen)


def _merge_groups(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Return the n best of ranked lists: the best of each, then the second best, and so on."""
    best: list[Hypothesis] = []
    for rank in range(max(map(len, groups))):
        candidates: list[Hypothesis] = []
        for hypothesis in (group[rank] for group in groups if rank < len(group)):
            if all(hypothesis.tokens != known.tokens for known in best):
                keep_best(candidates, hypothesis, n_best - len(best))
        best += candidates
    return sorted(best, key=lambda hypothesis: -hypothesis.score)
