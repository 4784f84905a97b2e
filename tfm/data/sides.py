"""Evidence that the source and the target of a training text are swapped."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from tfm.data.text import BytesPair

SAMPLE_PAIRS = 1_000
_MIN_PAIRS = 50
_MARGIN = 1.5  # that of English and German is 4

_Trigrams = Counter[tuple[int, ...]]


def look_swapped(pairs: Sequence[BytesPair], others: Sequence[BytesPair]) -> bool:
    """Return whether the sources of pairs resemble the targets of others, and the reverse.

    Trigrams of bytes tell any two languages apart; few pairs tell nothing.
    """
    if min(len(pairs), len(others)) < _MIN_PAIRS:
        return False
    source, target, other_source, other_target = (
        _trigrams(pair[side] for pair in some[:SAMPLE_PAIRS])
        for some in (pairs, others)
        for side in (0, 1)
    )
    straight = _similarity(source, other_source) + _similarity(target, other_target)
    crossed = _similarity(source, other_target) + _similarity(target, other_source)
    return crossed > _MARGIN * straight


def _trigrams(lines: Iterable[bytes]) -> _Trigrams:
    return Counter(chain.from_iterable(zip(line, line[1:], line[2:]) for line in lines))  # noqa: B905


def _similarity(one: _Trigrams, other: _Trigrams) -> float:
    """Return the cosine of the angle between two counts."""
    norms = (math.hypot(*counts.values()) for counts in (one, other))
    return sum(count * other[each] for each, count in one.items()) / (math.prod(norms) or 1.0)
