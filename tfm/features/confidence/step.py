"""The confidence in translations: their expected quality by their probability."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override

from tfm.folders.model_info import Calibration
from tfm.translation.steps import Output, Step

MIN_LINES = 100
_NUM_KNOTS = 20


def fit(log_probs: Sequence[float], qualities: Sequence[float]) -> Calibration:
    """Fit a monotone curve to the log probability per token and the quality of translations.

    Translations sorted by probability are divided into groups of equal size, whose means are the
    knots. Neighbors whose qualities fall are merged to their mean (isotonic regression by pooling
    adjacent violators).
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
    return Calibration(num_lines=len(order), log_probs=tuple(knots), qualities=tuple(means))


@dataclass(frozen=True)
class Confidence(Step):
    """Adds the confidence to translations of a calibrated model.

    The curve is linear between its knots, and constant outside of them.
    """

    calibration: Calibration

    @override
    def after(self, states: Sequence[Any], outputs: list[list[Output]]) -> list[list[Output]]:
        return [
            [self._added(each) if each.pieces else each for each in n_best] for n_best in outputs
        ]

    def _added(self, output: Output) -> Output:
        log_prob = output.log_prob / len(output.pieces)
        quality = np.interp(log_prob, self.calibration.log_probs, self.calibration.qualities)
        return replace(output, confidence=float(quality))
