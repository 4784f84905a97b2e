"""Find by the lengths of lines where one of two parallel texts lacks lines."""

import numpy as np
import numpy.typing as npt

# Chosen on Multi30k. If a line is removed from the middle, the sums are at least 7 standard
# deviations, and the number is wrong by 3 lines or fewer in 95 % of the cases. If one side is cut
# short at its end, no place was found in any of 6,000 cases; of unrelated texts, in 4 of 1,000.
_WINDOW_LINES = 200
_MIN_DEVIATIONS = 6.0
_NEAR_START_LINES = 20
_MARGIN = 10  # added to all lengths, so that short lines may differ more

Lengths = npt.NDArray[np.int32]


def first_misaligned_line(sources: Lengths, targets: Lengths) -> int | None:
    """Return the approximate number of the first line that is not beside its translation.

    If the longer text has D lines more, because they are missing from the other one at a single
    place, then line N fits line N before that place, and line N + D afterwards. Two lines fit if
    the logarithm of the ratio of their lengths is near that of the whole texts. Each line of the
    shorter text thus favors no shift or a shift by D. The place is that where the lines before it
    favor no shift, and those after it favor the shift, with the largest sum.

    It must be certain: the sums over the 200 lines before and over the 200 lines after it must each
    be 6 standard deviations or more. Before a place in the first 20 lines, no sum is required.

    Args:
        sources: [S] lengths of the lines of the source text.
        targets: [T] lengths of the lines of the target text.

    Returns:
        The number, counted from 1. None if no place is certain: one text is cut short at its end,
        lines are missing at several distant places, or the lengths are not informative enough.
    """
    shorter, longer = sorted((sources, targets), key=len)
    num_lines, shift = len(shorter), len(longer) - len(shorter)
    if not num_lines:
        return None
    ratio = np.log((longer.mean() + _MARGIN) / (shorter.mean() + _MARGIN))
    long, short = (np.log(lengths + np.float32(_MARGIN)) for lengths in (longer, shorter))
    differences = long - ratio.astype(np.float32)
    favor = np.abs(differences[:num_lines] - short) - np.abs(differences[shift:] - short)
    deviation = float(favor.std())
    if not deviation:
        return None
    place = int(np.concatenate([[0.0], np.cumsum(favor, dtype=np.float64)]).argmin())

    def certainty(lines: npt.NDArray[np.float32]) -> float:
        """Return the sum over some lines in standard deviations, positive for the shift."""
        return float(lines.sum() / deviation / np.sqrt(max(1, len(lines))))

    before, after = favor[max(0, place - _WINDOW_LINES) : place], favor[place:][:_WINDOW_LINES]
    is_certain = certainty(after) >= _MIN_DEVIATIONS and (
        place < _NEAR_START_LINES or certainty(before) <= -_MIN_DEVIATIONS
    )
    return place + 1 if is_certain else None
