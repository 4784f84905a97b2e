"""Runs that differ only by their seeds: groups, and tests between their scores."""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from statistics import fmean, stdev

from tfm.metrics.metric import Comparison, MetricScore

_NUM_ANGLES = 1_000_000  # of a numerical integral


def group_by_seed(runs: Mapping[str, tuple[Hashable, int] | None]) -> dict[str, list[str]]:
    """Return the names of the runs of each group, whose settings differ only by the seed.

    Any other run is a group by its own name; so are runs with one seed, such as two checkpoints.

    Args:
        runs: By name, the settings of a run without its seed, and the seed; None if unknown.
    """
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for name, run in runs.items():
        alike[name if run is None else run[0]].append(name)
    groups: dict[str, list[str]] = {}
    for names in alike.values():
        start = commonprefix(names)  # noqa: RUF071 - of characters: runs/base-{1,2}/averaged
        rests = [name.removeprefix(start) for name in names]
        end = commonprefix([rest[::-1] for rest in rests])[::-1]  # noqa: RUF071
        end = end[end.find("/") :] if "/" in end else ""
        joined = f"{start}{{{','.join(rest.removesuffix(end) for rest in rests)}}}{end}"
        is_group = len({runs[name] for name in names}) == len(names) > 1
        groups |= {joined: names} if is_group else {name: [name] for name in names}
    return groups


def mean_score(scores: Sequence[MetricScore], baselines: Sequence[MetricScore]) -> MetricScore:
    """Return the mean of the scores of a group, compared with those of the baseline's group.

    Between groups of one, the comparison of their scores is kept.
    """
    if len(scores) == len(baselines) == 1:
        return scores[0]
    values, others = ([score.value for score in group] for group in (scores, baselines))
    compared = Comparison(baseline=fmean(others), p_value=welch_p_value(values, others))
    return replace(
        scores[0],
        value=fmean(values),
        mean=None,
        interval=None,
        details={},
        deviation=stdev(values) if len(values) > 1 else None,
        comparison=None if scores is baselines else compared,
    )


def welch_p_value(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return p of the difference of two means by the two-sided t-test of Welch (1947).

    It is None if a side has fewer than two values, or all are equal within their side.
    """
    import numpy as np  # not needed to start a command

    sizes = (len(one), len(other))
    parts = [stdev(values) ** 2 / len(values) for values in (one, other) if len(values) > 1]
    if len(parts) < 2 or not sum(parts):
        return None
    t = abs(fmean(one) - fmean(other)) / math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
    # With t = sqrt(freedom) tan(angle), the density of Student's t is a power of the cosine.
    angle = math.atan(t / math.sqrt(freedom))
    tail, whole = (
        (math.pi / 2 - start)
        * float((np.cos(np.linspace(start, math.pi / 2, _NUM_ANGLES)) ** (freedom - 1)).mean())
        for start in (angle, 0.0)
    )
    return tail / whole
