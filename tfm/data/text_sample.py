"""A sample of a text, taken before it is cleaned: how the lengths of its sides are related."""

import re
from collections.abc import Iterable
from itertools import islice
from statistics import median

from tfm.data.languages import SENTENCE_MARKS, WIDE_SENTENCE_MARKS
from tfm.text.lines import BytesPair

# The number of pairs before some consecutive pairs, and these.
Window = tuple[int, list[BytesPair]]

_WINDOW_PAIRS = 128
_MAX_WINDOWS = 256
_MAX_BYTES = 1 << 12  # of a side in the sample; longer ones are cut
_MIN_PAIRS = 20  # of fewer pairs, the ratio says little
# In translations, a Han character is worth about three letters, a Hangul syllable two.
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_SENTENCE_END = re.compile(rf"[{WIDE_SENTENCE_MARKS}]+|[{SENTENCE_MARKS}]+(?!\w)")
_SENTENCE_CHARACTERS = 20  # so that a side with a sentence more, or without its end, is unlike


def sample_windows(pairs: Iterable[BytesPair]) -> list[Window]:
    """Return windows of consecutive pairs, evenly spaced over a text, in bounded memory.

    A text of at most 32,768 pairs is in the sample as a whole.
    """
    pairs, windows = iter(pairs), list[Window]()
    start, step = 0, _WINDOW_PAIRS
    while window := list(islice(pairs, _WINDOW_PAIRS)):
        if start % step == 0:
            windows.append((start, [(s[:_MAX_BYTES], t[:_MAX_BYTES]) for s, t in window]))
        start += len(window)
        if len(windows) > _MAX_WINDOWS:
            windows, step = windows[::2], 2 * step
    return windows


def length_ratio(pairs: Iterable[BytesPair]) -> float:
    """Return the median ratio of the lengths of target and source; 1 if there are few pairs."""
    ratios = [(1 + length(t.decode())) / (1 + length(s.decode())) for s, t in pairs]
    return round(median(ratios), 3) if len(ratios) >= _MIN_PAIRS else 1.0


def length(text: str) -> int:
    """Return the length of a text in letters, so that it can be compared across scripts.

    Each end of a sentence adds to it.
    """
    size = len(text) + _SENTENCE_CHARACTERS * len(_SENTENCE_END.findall(text))
    if text.isascii():
        return size
    return size + 2 * len(_HAN.findall(text)) + len(_HANGUL.findall(text))
