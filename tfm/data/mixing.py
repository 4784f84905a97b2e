"""Training texts in proportion: which pairs an epoch draws."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.data.dataset import Rows
from tfm.data.manifest import TrainingText
from tfm.errors import DataError

_DRAWS = 1  # in a seed, so that its generator is not one of those that shuffle epochs


class Runs(NamedTuple):
    """Runs of consecutive pairs."""

    starts: Rows  # [R] the first pair of each
    lengths: Rows  # [R] numbers of pairs


class Mixture:
    """Draws the pairs of each epoch, so that each text has its share of them.

    An epoch has as many pairs as all texts together. Each text is read in a random order, which
    ends and begins anew whatever the epoch: no pair is drawn again before all others of its text
    have been. So a text with half of its natural share is seen once in two epochs, and one with
    2.5 times its share two or three times in each. The draws only depend on texts, seed and epoch.

    Args:
        texts: The texts in the order of their pairs, each with a weight.
        seed: Random seed.
        run_pairs: Draw runs of N consecutive pairs.

    Attributes:
        counts: [number of texts] pairs of each text in every epoch.

    Raises:
        DataError: A weight is too small for a single pair.
    """

    def __init__(self, texts: Sequence[TrainingText], *, seed: int, run_pairs: int = 1) -> None:
        self._sizes = [text.kept for text in texts]
        self._seed = seed
        self._run_pairs = run_pairs
        self.counts = apportion(sum(self._sizes), [text.weight or 0.0 for text in texts])
        for text, count in zip(texts, self.counts, strict=True):
            if not count:
                raise DataError(
                    f"weight {text.weight or 0:g} of the training text {text.name} is less than "
                    f"one pair in an epoch of {sum(self._sizes):,}: raise it, or remove the text"
                )

    def runs(self, epoch: int) -> Runs:
        """Return the runs of an epoch (from 1), text by text."""
        drawn = [self._draw(number, epoch) for number in range(len(self._sizes))]
        return Runs(*map(np.concatenate, zip(*drawn, strict=True)))

    def _draw(self, number: int, epoch: int) -> Runs:
        """Return the runs of one text in an epoch; the first and last may be parts of runs."""
        size, count = self._sizes[number], self.counts[number]
        start, end = (epoch - 1) * count, epoch * count
        rounds = range(start // size, -(-end // size))
        generators = (np.random.default_rng([self._seed, number, i, _DRAWS]) for i in rounds)
        num_runs = -(-size // self._run_pairs)
        drawn = np.concatenate([generator.permutation(num_runs) for generator in generators])
        starts = self._run_pairs * drawn
        lengths = np.minimum(self._run_pairs, size - starts)
        ends = rounds.start * size + np.cumsum(lengths)
        done = np.maximum(0, start - (ends - lengths))  # pairs drawn by the epochs before
        lengths = lengths - done - np.maximum(0, ends - end)
        is_drawn = lengths > 0
        return Runs((sum(self._sizes[:number]) + starts + done)[is_drawn], lengths[is_drawn])


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a total in proportion to weights into whole numbers, by largest remainder."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts
