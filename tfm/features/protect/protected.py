"""A source with protected text, from before its search to its translations."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfm.features.protect.cuts import Cut, Link, grown, place, put_back, take_out
from tfm.text.units import Span
from tfm.translation.steps import Output, Segment

_SPACE = re.compile(r"\s+")
_MIN_LETTERS = 4  # of a word at the end of a prefix that may be the beginning of a span


@dataclass(frozen=True)
class Protected:
    """A source whose protected spans are taken out.

    Attributes:
        segment: What is searched: the remaining text.
        cuts: The spans, in order.
        forced: How many characters of the translation, without white space, are before the spans
            that a prefix has, or the translation, by their indices, in order.
    """

    segment: Segment
    cuts: Sequence[Cut]
    forced: dict[int, int]

    @classmethod
    def of(cls, unit: Segment, spans: Sequence[Span], *, start: int) -> "Protected | None":
        """Take spans out of a source, and out of its prefix.

        It is None if nothing is left to translate; a tag before `start` is not.
        """
        if unit.given:
            remaining, cuts = take_out(unit.source, spans)
            given, cuts, forced = _without(unit.given, cuts)
            return cls(replace(unit, source=remaining, given=given), cuts, forced)
        spans = grown(unit.source, spans, start=start)
        remaining, cuts = take_out(unit.source, spans)
        if not any(map(str.isalpha, remaining[start:])):
            return None
        return cls(replace(unit, source=remaining), cuts, {})

    @property
    def needs_links(self) -> bool:
        """Whether there is a span of an unknown place."""
        return len(self.forced) < len(self.cuts)

    def restored(self, output: Output, links: Sequence[Link]) -> Output:
        """Return a translation of the remaining text with the spans, given linked units of both."""
        start = _end_of(output.text, _size(self.segment.given or ""))
        places = place(self.segment.source, self.cuts, output.text, links, start)
        for index, size in self.forced.items():
            places[index] = _end_of(output.text, size)
        text, kept = put_back(output.text, self.cuts, places, as_written=[*self.forced])
        return replace(output, text=text, kept=tuple(kept))


def copied(source: str, spans: Sequence[Span], *, start: int) -> Output:
    """Return a source from `start` on as its translation, with single spaces between its spans."""
    text, kept, end = "", list[Link](), start
    for span in spans:
        text = (text + _SPACE.sub(" ", source[end : span[0]])).lstrip()
        kept.append((span, (len(text), len(text) + span[1] - span[0])))
        text, end = text + source[slice(*span)], span[1]
    text += _SPACE.sub(" ", source[end:]).rstrip()
    return Output(text, score=0.0, log_prob=0.0, kept=tuple(kept))


def _without(given: str, cuts: Sequence[Cut]) -> tuple[str, list[Cut], dict[int, int]]:
    """Return a prefix without spans, the spans with their neighbors there, and `forced`.

    The prefix may end within a span.
    """
    found: dict[int, Span] = {}
    for index, cut in sorted(enumerate(cuts), key=lambda pair: -len(pair[1].text)):
        at = given.find(cut.text)
        while at >= 0 and any(
            low < at + len(cut.text) and at < high for low, high in found.values()
        ):
            at = given.find(cut.text, at + 1)
        if at >= 0:
            found[index] = at, at + len(cut.text)
    started = [
        (_begun(given, cut.text), index) for index, cut in enumerate(cuts) if index not in found
    ]
    size, index = max(started, default=(0, 0), key=lambda pair: (pair[0], -pair[1]))
    if size and all(high <= len(given) - size for _, high in found.values()):
        found[index] = len(given) - size, len(given)
    order = sorted(found, key=lambda index: found[index])
    remaining, taken = take_out(given, [found[index] for index in order])
    result, forced = list(cuts), {}
    for index, cut in zip(order, taken, strict=True):
        result[index] = replace(cuts[index], before=cut.before, after=cut.after)
        forced[index] = _size(remaining[: cut.at])
    return remaining, result, forced


def _begun(given: str, span: str) -> int:
    """Return how many characters of a span a prefix ends with, without all of them."""
    least = _MIN_LETTERS if span[0].isalnum() else 1
    sizes = range(min(len(span) - 1, len(given)), least - 1, -1)
    return next((size for size in sizes if given.endswith(span[:size])), 0)


def _size(text: str) -> int:
    """Return the number of characters of a text without white space, in the form of output."""
    return len("".join(unicodedata.normalize("NFC", text).split()))


def _end_of(text: str, size: int) -> int:
    """Return the number of characters of a text that hold this many without white space."""
    ends = [end for end, character in enumerate(text, start=1) if not character.isspace()]
    return [0, *ends][min(size, len(ends))]
