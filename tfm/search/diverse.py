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
    """Find good outputs of a batch of sources that differ from each other.

    Each group is a beam search of its own, with its share of the beam. All make a step in turn,
    and in its choice of continuations a group counts each token as `diversity_strength` nats less
    probable for every time that a group before it has chosen that token in this step (Hamming
    diversity). What is chosen keeps the model's own log probability and score.

    Args:
        model: Anything that can encode and step, in evaluation mode.
        source: [B, S] token ids, closed by EOS and padded at the end.
        lengths: [B] their lengths, EOS included.
        config: Beam, groups, penalty and limits.
        prefixes: What outputs must start with.

    Returns:
        For each source its n best: the best of each group, then the second best of each, and so
        on, until there are `n_best`; these by score, best first. What several groups find counts
        once, so there may be fewer.
    """
    size = config.beam_size // config.num_groups
    # A group finishes as many as it holds, whatever n_best: else that would change what is chosen.
    group_config = replace(config, beam_size=size, n_best=size, num_groups=1)
    start = ActiveHypotheses(model, source, lengths, config, prefixes)
    groups = [
        BeamSearchState(start.copy(), group_config, prune=False) for _ in range(config.num_groups)
    ]
    while any(group.hypotheses.num_open for group in groups):
        _step(groups, len(lengths), size=size, strength=config.diversity_strength)
    return [
        _taken_in_turn(found, config.n_best)
        for found in zip(*(group.finished for group in groups), strict=True)
    ]


def _step(
    groups: Sequence[BeamSearchState], num_sentences: int, *, size: int, strength: float
) -> None:
    """Let every group make a step, each in the knowledge of what those before it chose."""
    times_chosen: Tensor | None = None  # [all sentences, V]
    for group in groups:
        if not group.hypotheses.num_open:
            continue
        log_probs = group.hypotheses.next_log_probs()
        if times_chosen is None:
            times_chosen = log_probs.new_zeros(num_sentences, log_probs.size(2))
        sentences = group.hypotheses.sentences.to(log_probs.device)
        totals = group.hypotheses.log_probs[:, :, None] + log_probs
        chosen = _chosen(totals, strength * times_chosen[sentences], size=size)
        is_possible = chosen.totals.isfinite().to(times_chosen.dtype)
        times_chosen.index_put_((sentences[:, None], chosen.tokens), is_possible, accumulate=True)
        group.extend(chosen)


def _chosen(totals: Tensor, diversity_penalties: Tensor, *, size: int) -> Continuations:
    """The best continuations of each sentence after diversity penalties.

    Args:
        totals: [B, K, V] log probabilities of all continuations.
        diversity_penalties: [B, V] nats that a token loses in this choice, and in nothing else.
        size: How many to choose.
    """
    ranked = (totals - diversity_penalties[:, None, :]).flatten(1)
    index = ranked.topk(min(size, ranked.size(1)), dim=1).indices
    num_tokens = totals.size(2)
    return Continuations(
        totals.flatten(1).gather(1, index), index // num_tokens, index % num_tokens
    )


def _taken_in_turn(found: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """The n best of several ranked lists: their best first, then their second best, and so on."""
    best: list[Hypothesis] = []
    for rank in range(max(map(len, found))):
        rivals: list[Hypothesis] = []
        for hypothesis in (hypotheses[rank] for hypotheses in found if rank < len(hypotheses)):
            if all(hypothesis.tokens != other.tokens for other in best):
                keep_best(rivals, hypothesis, n_best - len(best))
        best += rivals
    return sorted(best, key=lambda hypothesis: -hypothesis.score)
