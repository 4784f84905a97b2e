"""Dropout whose decisions are drawn from a counter: made again where needed, never stored.

Philox4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a seed and a
counter into four 32-bit words. A word makes two decisions of 16 bits, so that one counter serves
eight neighbors of a row. Each use of dropout in a step needs its own seed.
"""

from torch import Tensor

# The fewest rounds that pass every test of that paper (its §5); more cost time.
ROUNDS = 7

# Decisions that one counter makes, in neighboring columns.
GROUP = 8

_LEVELS = 1 << 16


def drop_below(dropout: float) -> int:
    """Numbers of 16 bits below this mean "drop".

    Raises:
        ValueError: A probability that leaves nothing, or none at all.
    """
    threshold = round(dropout * _LEVELS)
    if not 0 <= threshold < _LEVELS:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    return threshold


def keep_scale(dropout: float) -> float:
    """What kept numbers are multiplied by: the exact inverse of how often 16 bits keep them."""
    return _LEVELS / (_LEVELS - drop_below(dropout))


def checked_seed(seed: Tensor | None) -> Tensor:
    """The seed of a dropout.

    Raises:
        ValueError: There is none.
    """
    if seed is None:
        raise ValueError("dropout needs a seed: pass a tensor of one int64")
    return seed
