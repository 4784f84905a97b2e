"""A sample of a text, taken before it is cleaned: whether its sides fit, and their lengths."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from statistics import median

import numpy as np

from tfm.errors import DataError
from tfm.reporting import say
from tfm.text.languages import SENTENCE_MARKS, WIDE_SENTENCE_MARKS
from tfm.text.lines import BytesPair, UnusableLine

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
_WORD = re.compile(r"\d+|[^\W\d_]+")
_MAX_OFFSET = 5
_MIN_WINDOW_PAIRS = 32
_MIN_GAIN = 0.3  # of the fit at another offset; 128 random lines hardly exceed it
_ROUNDING = 1e-9  # of lengths that are all alike
_MIN_MATCHES = 5  # with fewer rare words in common, only lengths tell
_SENTENCE_CHARACTERS = 20  # so that a side with a sentence more, or without its end, is unlike


def sample_windows(pairs: Iterable[BytesPair]) -> list[Window]:
    """Return windows of consecutive pairs, evenly spaced over a text, in bounded memory.

    A text of at most 32,768 pairs is in the sample as a whole.
    """
    pairs, windows = iter(pairs), list[Window]()
    start, step = 0, _WINDOW_PAIRS
    while window := list(islice(pairs, _WINDOW_PAIRS)):
        if start % step == 0:
            usable = (pair for pair in window if not isinstance(pair[0], UnusableLine))
            windows.append((start, [(s[:_MAX_BYTES], t[:_MAX_BYTES]) for s, t in usable]))
        start += len(window)
        if len(windows) > _MAX_WINDOWS:
            windows, step = windows[::2], 2 * step
    return windows


def check_alignment(windows: Iterable[Window], paths: str, *, force: bool = False) -> None:
    """Raise DataError if most lines match the translation of another line; warn if some do.

    `force` only warns: in a text of dialogues, for example, each line may answer the one before.
    """
    found: dict[int, list[int]] = {}  # the starts of windows by the offset at which lines fit
    for start, pairs in windows:
        if len(pairs) >= _MIN_WINDOW_PAIRS:
            fits = _fits(pairs)
            best = max(fits, key=lambda offset: fits[offset])
            gain = fits[best] - max(0.0, fits[0])
            is_clear = gain > max(_MIN_GAIN, 4 / math.sqrt(len(pairs)))
            found.setdefault(best if is_clear else 0, []).append(start)
    num_windows = sum(map(len, found.values()))
    found.pop(0, None)
    if not found:
        return
    offset, starts = max(found.items(), key=lambda item: len(item[1]))
    lines, side = "line" if abs(offset) == 1 else "lines", "target" if offset > 0 else "source"
    problem = (
        f"{paths}: from about line {starts[0] + 1:,} on, line N of the source fits line "
        f"N{offset:+} of the target by lengths, numbers and words, in {len(starts):,} of "
        f"{num_windows:,} samples: remove {abs(offset)} {lines} of the {side} that the other side "
        "lacks, or add the translation"
    )
    if 2 * len(starts) > num_windows and not force:
        raise DataError(f"{problem}; --force prepares the text as it is")
    say(f"warning: {problem}")


def _fits(pairs: Sequence[BytesPair]) -> dict[int, float]:
    """Return how well each source fits the target `offset` lines later, at most 1, by offset.

    This is the correlation of lengths, averaged with the share of equal words and numbers, the
    rarer ones of which count more.
    """
    sides = [
        [side.decode(errors="ignore") for side in column] for column in zip(*pairs, strict=True)
    ]
    sizes = [np.log([length(text) + _SENTENCE_CHARACTERS for text in side]) for side in sides]
    words = [[set(_WORD.findall(text.casefold())) for text in side] for side in sides]
    frequency = Counter(chain.from_iterable(chain(*words)))
    fits, matches = {}, {}
    for offset in range(-_MAX_OFFSET, _MAX_OFFSET + 1):
        source = slice(max(0, -offset), len(pairs) - max(0, offset))
        target = slice(max(0, offset), len(pairs) - max(0, -offset))
        one, other = (size - size.mean() for size in (sizes[0][source], sizes[1][target]))
        norm = math.sqrt((one @ one) * (other @ other))
        fits[offset] = float(one @ other) / norm if norm > _ROUNDING else 0.0
        both = (a & b for a, b in zip(words[0][source], words[1][target], strict=True))
        matches[offset] = sum(1 / frequency[word] for word in chain.from_iterable(both))
    total = sum(matches.values())
    if total < _MIN_MATCHES:
        return fits
    return {offset: (fit + matches[offset] / total) / 2 for offset, fit in fits.items()}


def length_ratio(pairs: Iterable[BytesPair]) -> float | None:
    """Return the median ratio of the lengths of target and source; None if there are few pairs."""
    ratios = [(1 + length(t.decode())) / (1 + length(s.decode())) for s, t in pairs]
    return round(median(ratios), 3) if len(ratios) >= _MIN_PAIRS else None


def length(text: str) -> int:
    """Return the length of a text in letters, so that it can be compared across scripts.

    Each end of a sentence adds to it.
    """
    # Patterns are slow, and most lines are one sentence, in many languages in Latin-1.
    num_marks = text.count(".") + text.count("!") + text.count("?")
    is_one = num_marks <= text.endswith((".", "!", "?"))
    if is_one and (text.isascii() or len(text.encode("latin-1", "ignore")) == len(text)):
        return len(text) + _SENTENCE_CHARACTERS * num_marks
    size = len(text) + _SENTENCE_CHARACTERS * len(_SENTENCE_END.findall(text))
    return size + 2 * len(_HAN.findall(text)) + len(_HANGUL.findall(text))
