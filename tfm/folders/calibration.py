"""The confidence of a model in its translations, calibrated on text with references."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_LINES = 100
_NUM_KNOTS = 20


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The expected quality of translations, by their probability.

    Attributes:
        num_lines: Number of translations that it was measured on.
        log_probs: Knots: log probabilities per token, EOS included, in nats; ascending.
        qualities: Mean sentence chrF at each knot, from 0 to 1; ascending.
    """

    num_lines: int
    log_probs: tuple[float, ...]
    qualities: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.log_probs) == len(self.qualities):
            raise ValueError("log_probs and qualities must be as many numbers")
        is_ascending = sorted(self.log_probs) == [*self.log_probs]
        if not is_ascending or not 0 <= min(self.qualities) <= max(self.qualities) <= 1:
            raise ValueError("log_probs must be ascending, and qualities from 0 to 1")

    def confidence(self, log_prob: float, num_tokens: int) -> float:
        """Return the expected chrF, from 0 to 1, of a translation with N tokens, EOS included.

        It is interpolated between the knots, and that of the nearest knot outside of them.
        """
        return float(np.interp(log_prob / num_tokens, self.log_probs, self.qualities))

    @classmethod
    def fit(cls, log_probs: Sequence[float], qualities: Sequence[float]) -> "Calibration":
        """Fit a monotone curve to the log probability per token and the quality of translations.

        Translations sorted by probability are divided into groups of equal size, whose means are
        the knots. Neighbors whose qualities fall are merged to their mean (isotonic regression by
        pooling adjacent violators).
        """
        order = np.argsort(log_probs, kind="stable")
        groups = np.array_split(order, _NUM_KNOTS)
        knots = [float(np.mean(np.take(log_probs, group))) for group in groups]
        pools: list[list[float]] = []
        for group in groups:
            pools.append([float(np.mean(np.take(qualities, group)))])
            while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
                pools[-2:] = [pools[-2] + pools[-1]]
        means = [float(np.mean(pool)) for pool in pools for _ in pool]
        return cls(num_lines=len(order), log_probs=tuple(knots), qualities=tuple(means))
