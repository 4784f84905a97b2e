"""What hypotheses are ranked by: the length penalty, the best score within reach, the n best."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


class LengthPenalty:
    """The length penalty of every length up to a greatest one, as tensors need it.

    Args:
        alpha: α.
        max_length: The greatest length, EOS included.
        device: Where the lengths are.
    """

    def __init__(self, alpha: float, *, max_length: int, device: torch.device) -> None:
        penalties = [length_penalty(length, alpha) for length in range(max_length + 2)]
        self._penalties = torch.tensor(penalties, dtype=torch.float64, device=device)
        self._grows = alpha >= 0

    def scores(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """The scores of finished outputs: [B, K] log probabilities, [B] lengths with EOS."""
        return log_probs.double() / self._penalties[lengths][:, None]

    def min_log_probs(self, scores: Tensor, lengths: Tensor, max_lengths: Tensor) -> Tensor:
        """The log probability above which a continuation may still end with a better score.

        A log probability can only fall. The penalty divides it by most at the greatest length or,
        with a negative α, at the next one: no score can be higher than that.

        Args:
            scores: [B] the scores to beat.
            lengths: [B] of outputs that would end now.
            max_lengths: [B] the greatest of outputs, EOS included.

        Returns:
            [B] float64.
        """
        return scores * self._penalties[max_lengths if self._grows else lengths + 1]


def keep_best(best: list[Hypothesis], found: Hypothesis, n_best: int) -> None:
    """Insert a hypothesis into the n best, if it is new and among them.

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
