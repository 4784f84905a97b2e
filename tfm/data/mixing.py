"""Training texts in proportion: which pairs an epoch draws."""

from collections.abc import Sequence

import numpy as np

from tfm.data.dataset import Rows
from tfm.data.manifest import TrainingText
from tfm.errors import DataError

_DRAWS = 1  # in a seed, so that its generator is not one of those that shuffle epochs


class Mixture:
    """Draws the pairs of each epoch, so that each text has its share of them.

    An epoch has as many pairs as all texts together. Each text is read in a random order, which
    ends and begins anew whatever the epoch: no pair is drawn again before all others of its text
    have been. So a text with half of its natural share is seen once in two epochs, and one with
    2.5 times its share two or three times in each. The draws only depend on texts, seed and epoch.

    Args:
        texts: The texts in the order of their pairs, each with a weight.
        seed: Random seed.

    Attributes:
        counts: [number of texts] pairs of each text in every epoch.

    Raises:
        DataError: A weight is too small for a single pair.
    """

    def __init__(self, texts: Sequence[TrainingText], *, seed: int) -> None:
        self._sizes = [text.kept for text in texts]
        self._seed = seed
        self.counts = apportion(sum(self._sizes), [text.weight or 0.0 for text in texts])
        for text, count in zip(texts, self.counts, strict=True):
            if not count:
                raise DataError(
                    f"weight {text.weight or 0:g} of the training text {text.name} is less than "
                    f"one pair in an epoch of {sum(self._sizes):,}: raise it, or remove the text"
                )

    def rows(self, epoch: int) -> Rows:
        """Return the rows [N] of an epoch (from 1), text by text."""
        starts = np.cumsum([0, *self._sizes[:-1]]).tolist()
        return np.concatenate([start + self._draw(i, epoch) for i, start in enumerate(starts)])

    def _draw(self, number: int, epoch: int) -> Rows:
        """Return the rows [count] of one text in an epoch, counted from its first pair."""
        size, count = self._sizes[number], self.counts[number]
        start, end = (epoch - 1) * count, epoch * count
        rounds = range(start // size, -(-end // size))
        generators = (np.random.default_rng([self._seed, number, i, _DRAWS]) for i in rounds)
        drawn = np.concatenate([generator.permutation(size) for generator in generators])
        offset = start - rounds.start * size
        return drawn[offset : offset + count]


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a total in proportion to weights into whole numbers, by largest remainder."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts
