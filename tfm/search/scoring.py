"""Scores of hypotheses: the length penalty, and lists of the n best."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished output."""

    tokens: tuple[int, ...]  # token ids, without BOS and EOS
    log_prob: float  # log P(tokens, EOS | source), in nats
    score: float  # log_prob divided by the length penalty; hypotheses are ranked by it
    # In exact search, whether this is proven to be one of the best; otherwise None.
    proven: bool | None = None


def check_finite(is_finite: bool) -> None:
    """Raise CheckpointError if the probabilities of a model are not finite."""
    if not is_finite:
        raise CheckpointError(
            "the model gives no finite probabilities: its weights are damaged, or its training "
            "diverged; choose another checkpoint"
        )


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + |Y|) / 6)^α of |Y| tokens, EOS included (Wu et al. 2016, eq. 14)."""
    return float(((5 + length) / 6) ** alpha)


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes in float64; Apple GPUs do not."""
    return device.type != "mps"


def score_dtype(device: torch.device) -> torch.dtype:
    """Return the type of scores on a device."""
    return torch.float64 if has_float64(device) else torch.float32


class LengthPenalty:
    """The length penalties, with exponent α, of all lengths up to a maximum as a tensor."""

    def __init__(self, alpha: float, *, max_length: int, device: torch.device) -> None:
        penalties = [length_penalty(length, alpha) for length in range(max_length + 2)]
        self._penalties = torch.tensor(penalties, dtype=score_dtype(device), device=device)
        self._grows = alpha >= 0

    def scores(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores [B, K] of outputs with log probabilities [B, K] and lengths [B]."""
        return log_probs.to(self._penalties.dtype) / self._penalties[lengths][:, None]

    def min_log_probs(self, scores: Tensor, lengths: Tensor, max_lengths: Tensor) -> Tensor:
        """Return the log probabilities [B] above which a continuation can beat [B] scores.

        Log probabilities only fall. The greatest divisor is that of the [B] maximum lengths or, if
        α is negative, of the length after [B] present ones, EOS included.
        """
        return scores * self._penalties[max_lengths if self._grows else lengths + 1]


def keep_best(best: list[Hypothesis], found: Hypothesis, n_best: int) -> None:
    """Insert a hypothesis into the list of the n best, best first, if it is new and among them."""
    if all(found.tokens != known.tokens for known in best):
        best.append(found)
        best.sort(key=lambda hypothesis: -hypothesis.score)
        del best[n_best:]


def nth_score(best: list[Hypothesis], n_best: int) -> float:
    """Return the score that a hypothesis must beat to enter the n best, -inf if they are fewer."""
    return best[-1].score if len(best) == n_best else float("-inf")
