# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The decisions of `tfm.backends.philox`, a tile at a time."""

import triton
import triton.language as tl

from tfm.backends.philox import GROUP, ROUNDS

_GROUP = tl.constexpr(GROUP)
_ROUNDS = tl.constexpr(ROUNDS)


@triton.jit
def kept(
    seed: tl.tensor,
    stream: tl.tensor,
    rows: tl.tensor,
    first_column: tl.tensor,
    num_columns: tl.constexpr,
    threshold: tl.constexpr,
) -> tl.tensor:
    """Which elements of a tile stay.

    Args:
        seed: Pointer to it.
        stream: Which table of decisions.
        rows: [R] int32.
        first_column: Of the tile; a multiple of `GROUP`.
        num_columns: C, a power of two and a multiple of `GROUP`.
        threshold: Of `drop_below`.

    Returns:
        [R, C] int1.
    """
    groups = first_column // _GROUP + tl.arange(0, num_columns // _GROUP)
    a, b, c, d = tl.philox(tl.load(seed), groups[None, :], rows[:, None], stream, 0, _ROUNDS)
    words = tl.join(tl.join(a, c), tl.join(b, d))  # [R, C / 8, 2, 2]: a, b, c, d in a row's order
    words = tl.reshape(words, (rows.shape[0], num_columns // 2))
    halves = tl.join((words & 0xFFFF) >= threshold, (words >> 16) >= threshold)
    return tl.reshape(halves, (rows.shape[0], num_columns))
