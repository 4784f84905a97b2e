"""Minimum Bayes risk decoding: the candidate that is most similar to all candidates."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfm.config import BleuTokenizer
from tfm.inference.lines import Translation
from tfm.metrics.utility import UtilityName, pairwise_utilities


def most_useful(
    candidates: Sequence[Translation],
    utility: UtilityName,
    *,
    are_samples: bool,
    tokenizer: BleuTokenizer = "13a",
) -> Translation:
    """Return the candidate with the greatest expected utility, the first one of several.

    The candidates are also the references of the expectation: samples count equally (Eikema & Aziz
    2020, §4.3), the translations of a beam by their probabilities (Kumar & Byrne 2004, §2.3).
    """
    weight_of: dict[str, float] = defaultdict(float)  # of equal texts together
    best_log_prob = max(each.log_prob for each in candidates)
    for each in candidates:
        weight_of[each.text] += 1.0 if are_samples else math.exp(each.log_prob - best_log_prob)
    texts, weights = list(weight_of), np.array(list(weight_of.values()))
    if len(texts) == 1:
        return replace(candidates[0], utility=100.0)
    utilities = pairwise_utilities(texts, utility, tokenizer=tokenizer)
    expected = (utilities * weights).sum(axis=1) / weights.sum()
    best = int(expected.argmax())
    chosen = next(each for each in candidates if each.text == texts[best])
    return replace(chosen, utility=float(expected[best]))
