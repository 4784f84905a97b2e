# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""Dropout masks by Philox (see `tfm.backends.dropout`), one tile at a time."""

import triton
import triton.language as tl

from tfm.backends.dropout import PHILOX_GROUP, PHILOX_ROUNDS

_GROUP = tl.constexpr(PHILOX_GROUP)
_ROUNDS = tl.constexpr(PHILOX_ROUNDS)


@triton.jit
def keep_mask(
    seed: tl.tensor,
    stream: tl.tensor,
    rows: tl.tensor,
    first_column: tl.tensor,
    num_columns: tl.constexpr,
    threshold: tl.constexpr,
) -> tl.tensor:
    """Return the [R, C] int1 mask of the elements of a tile to keep.

    Args:
        seed: Pointer to an int64.
        stream: Index of an independent mask, such as a head.
        rows: [R] int32.
        first_column: The tile's first column, a multiple of `PHILOX_GROUP`.
        num_columns: C, a power of two and a multiple of `PHILOX_GROUP`.
        threshold: The result of `drop_threshold`.
    """
    groups = first_column // _GROUP + tl.arange(0, num_columns // _GROUP)
    a, b, c, d = tl.philox(tl.load(seed), groups[None, :], rows[:, None], stream, 0, _ROUNDS)
    words = tl.join(tl.join(a, c), tl.join(b, d))  # [R, C / 8, 2, 2]: a, b, c, d by column
    words = tl.reshape(words, (rows.shape[0], num_columns // 2))
    halves = tl.join((words & 0xFFFF) >= threshold, (words >> 16) >= threshold)
    return tl.reshape(halves, (rows.shape[0], num_columns))
