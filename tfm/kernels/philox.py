"""Dropout whose decisions are drawn from a counter: made again where needed, never stored.

Philox4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a seed and a
counter into four 32-bit words. A word makes two decisions of 16 bits, so that one counter serves
eight neighbours of a row. Every use of dropout in a step needs a seed of its own.
"""

import torch
from torch import Tensor

# The fewest rounds that pass every test of that paper (its §5); more cost time.
ROUNDS = 7

# Decisions that one counter makes, in neighbouring columns.
GROUP = 8

_LEVELS = 1 << 16
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


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


def kept(
    seed: Tensor, *, num_streams: int, num_rows: int, num_columns: int, dropout: float
) -> Tensor:
    """Which elements stay.

    Args:
        seed: [1] int64; another one, other decisions.
        num_streams: Independent tables of decisions: the heads of attention.
        num_rows: Rows of each.
        num_columns: Columns of each.
        dropout: Probability of dropping an element.

    Returns:
        [num_streams, num_rows, num_columns] bool.
    """
    device = seed.device
    groups = torch.arange(-(-num_columns // GROUP), device=device)
    rows = torch.arange(num_rows, device=device)[:, None]
    streams = torch.arange(num_streams, device=device)[:, None, None]
    words = torch.stack(_philox(seed, groups, rows, streams), dim=-1)
    halves = torch.stack((words & (_LEVELS - 1), words >> 16), dim=-1)
    return (halves >= drop_below(dropout)).flatten(-3)[..., :num_columns]


def _philox(seed: Tensor, *counter: Tensor) -> tuple[Tensor, ...]:
    """Four words, as int64, of counters (c0, c1, c2, 0), which are broadcast."""
    c0, c1, c2 = counter
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(ROUNDS):
        # 64 bits wrap, which leaves both halves of an unsigned product as they should be.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & _WORD) ^ c1 ^ k0, second & _WORD
        c2, c3 = ((first >> 32) & _WORD) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3
