"""Finished hypotheses, their length penalty, and the best of them."""

from dataclasses import dataclass

from tfm.config import SearchConfig
from tfm.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished output of a search, or a given target that was scored."""

    tokens: tuple[int, ...]  # token ids, without BOS and EOS
    log_prob: float  # log P(tokens, EOS | source), in nats
    score: float  # log_prob divided by the length penalty; hypotheses are ranked by it
    # In exact search, whether this is proven to be one of the best; otherwise None.
    proven: bool | None = None
    # Of each token of a given output, EOS included, in nats; None if a search found the output.
    token_log_probs: tuple[float, ...] | None = None


def check_finite(is_finite: bool) -> None:
    """Raise CheckpointError if the probabilities of a model are not finite."""
    if not is_finite:
        raise CheckpointError(
            "the model gives no finite probabilities: its weights are damaged, or its training "
            "diverged; choose another checkpoint"
        )


def length_penalty(length: int, config: SearchConfig) -> float:
    """Return ((5 + |Y|) / 6)^α of |Y| tokens, EOS included (Wu et al. 2016, eq. 14)."""
    return float(((5 + length) / 6) ** config.length_penalty)


def keep_best(best: list[Hypothesis], hypothesis: Hypothesis, n_best: int) -> None:
    """Insert a hypothesis into the list of the n best, best first, if it is new and among them."""
    if all(hypothesis.tokens != other.tokens for other in best):
        best.append(hypothesis)
        best.sort(key=lambda each: -each.score)
        del best[n_best:]


def nth_score(best: list[Hypothesis], n_best: int) -> float:
    """Return the score that a hypothesis must beat to enter the n best, -inf if they are fewer."""
    return best[-1].score if len(best) == n_best else float("-inf")
