"""What a search returns, and what it is ranked by."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished output.

    Attributes:
        tokens: Token ids, without BOS and EOS.
        log_prob: log P(tokens, EOS | source), in nats.
        score: log_prob over the length penalty; hypotheses are ranked by it.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^α of Wu et al. 2016, eq. 14, by which log P is divided.

    Args:
        length: |Y|: tokens of the output, EOS included.
        alpha: α.
    """
    return float(((5 + length) / 6) ** alpha)
