"""What a search returns, and what it is ranked by."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished output.

    Attributes:
        tokens: Token ids, without BOS and EOS.
        log_prob: log P(tokens, EOS | source), in nats.
        score: log_prob over the length penalty; hypotheses are ranked by it.
        proven: Whether it is known that no output has a better score; None if nobody asked.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    proven: bool | None = None


def length_penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^α of Wu et al. 2016, eq. 14, by which log P is divided.

    Args:
        length: |Y|: tokens of the output, EOS included.
        alpha: α.
    """
    return float(((5 + length) / 6) ** alpha)


def keep_best(best: list[Hypothesis], found: Hypothesis, n_best: int) -> None:
    """Let a hypothesis take its place among the n best, if it has one and is new to them.

    Args:
        best: At most `n_best` hypotheses, best first; changed in place.
        found: Another one.
        n_best: How many to keep.
    """
    if all(found.tokens != other.tokens for other in best):
        best.append(found)
        best.sort(key=lambda hypothesis: -hypothesis.score)
        del best[n_best:]


def nth_score(best: list[Hypothesis], n_best: int) -> float:
    """The score above which a hypothesis enters the n best: that of the last, or -inf."""
    return best[-1].score if len(best) == n_best else float("-inf")
