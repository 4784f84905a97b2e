"""Cutting protected spans out of a source, and putting them into its translations."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import regex

from tfm.config.normalization import INVISIBLE
from tfm.features.protect.spans import SYMBOL
from tfm.text.units import Span, units
from tfm.translation.steps import Output, Segment

Link = tuple[Span, Span]

_SPACES, _VISIBLE = re.compile(r"\s+"), re.compile(rf"(?!{INVISIBLE.pattern})\S")
_MIN_LETTERS = 4  # of a word at the end of a prefix that may be the beginning of a span
_DECAY = 0.5  # of the weight of a link, by its distance from the span in units
_BESIDE = 1.0  # the weight of a link that puts a neighbor of a span beside it
_EQUAL = 1e-9
_OPENING = "([{«‹„“‘¿¡（「『《〈"
_CLOSING = ".,;:!?…)]}»”’%。，、；：！？）」』》〉،؛؟।"
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_PAIRS = dict(zip("([\"'“„«‘「", ")]\"'”“»’」", strict=True))
_BEFORE = regex.compile(r"(?<![^\s\p{P}\p{Han}])[A-Za-z\d€$£#+-]{1,40}$")
# Tags, conditions and the like around text, line breaks and symbols: the words beside them are
# translated.
_BREAK = rf"\\[nrt]|<[bh]r\s*/?>|(?P<symbol>(?![<>|~]){SYMBOL})"
_MARK = (
    rf"{_BREAK}|(?P<opening><[A-Za-z\d](?:[^<>]*[^<>/])?>)|(?P<closing></[A-Za-z\d][^<>]*>)"
    r"|\{%.*?%\}|\{\{[#/^!][^{}]*\}\}|\{[#/:@\\][^{}]*\}|<%(?![=-]).*?%>|<!--.*?-->|</?#[^<>]*>"
    r"|\*\|(?:IF|ELSE|END)[^|]*\|\*|\\[A-Za-z]+\[\d+\]"
)
_STARTS_WITH_MARK, _ENDS_WITH_MARK = regex.compile(_MARK), regex.compile(rf"(?:{_MARK})$")
_BREAKS = regex.compile(rf"(?:{_BREAK})+")
_AFTER = regex.compile(r"[-'’]?[A-Za-z\d%°€$£+]+(?!\w)|%")


@dataclass(frozen=True)
class Cut:
    """A span that was taken out of a text.

    Attributes:
        text: The span.
        start: Where it starts in the text.
        at: The number of characters of the remaining text before it.
        before: The character before it in the text; "" at the start.
        after: The character after it; "" at the end.
    """

    text: str
    start: int
    at: int
    before: str
    after: str

    @property
    def span(self) -> Span:
        """Where it is in the text."""
        return self.start, self.start + len(self.text)

    @property
    def joins(self) -> tuple[bool, bool]:
        """Whether it is a mark that has no space before it, and after it, beside words."""
        first, last = _STARTS_WITH_MARK.match(self.text), _ENDS_WITH_MARK.search(self.text)
        return (
            bool(first and not first["opening"] and _is_beside(first, self.before)),
            bool(last and not last["closing"] and _is_beside(last, self.after)),
        )


@dataclass(frozen=True)
class Protected:
    """A source whose protected spans are taken out.

    Attributes:
        segment: What is searched: the remaining text.
        cuts: The spans, in order.
        forced: How many visible characters of the translation are before the spans
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


def _is_beside(mark: regex.Match[str], character: str) -> bool:
    """Return whether a mark has no space beside it: for symbols, punctuation does not count."""
    return character.isalnum() if mark["symbol"] else bool(character.strip())


def take_out(text: str, spans: Sequence[Span]) -> tuple[str, list[Cut]]:
    """Return a text without the given spans, which are in order, and the removed spans.

    One of the spaces on both sides of a span remains, but no space before a punctuation mark. A
    line break and a symbol between words become a space.
    """
    remaining, cuts, end = "", list[Cut](), 0
    for start, stop in spans:
        remaining += text[end:start]
        before, after = text[start - 1 : start] if start else "", text[stop : stop + 1]
        end = stop
        if after and after in _CLOSING:
            remaining = remaining.rstrip()
        elif after.isspace() and (remaining[-1:].isspace() or not remaining):
            end += 1
        cuts.append(Cut(text[start:stop], start, len(remaining), before, after))
        is_break = before.strip() and after.strip() and _BREAKS.fullmatch(text, start, stop)
        if is_break and after not in _CLOSING and not _UNSPACED.match(before):
            remaining += " "
    return remaining + text[end:], cuts


def grown(text: str, spans: Sequence[Span], *, start: int = 0) -> list[Span]:
    """Return spans extended by quotes and brackets around them, and by attached characters.

    Attached are characters that mean nothing without the span, as in {n}% and {name}'s, but not
    the words in and beside tags. The text before `start` is not searched.
    """
    found: list[Span] = []
    low, has_tags = start, "</" in text
    for first, end in spans:
        first = max(first, low)
        while first > low and _PAIRS.get(text[first - 1]) == text[end : end + 1] != "":
            first, end = first - 1, end + 1
        marks = _STARTS_WITH_MARK.match(text, first, end), _ENDS_WITH_MARK.search(text, first, end)
        # A tag that nothing closes, such as <name>, is a word.
        starts, ends = (bool(mark and (has_tags or not mark["opening"])) for mark in marks)
        if (attached := _BEFORE.search(text, low, first)) and not starts:
            first = attached.start()
        if (attached := _AFTER.match(text, end)) and not ends:
            end = attached.end()
        if found and first == low:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
        low = end
    return found


def put_back(
    text: str, cuts: Sequence[Cut], places: Sequence[int], as_written: Sequence[int] = ()
) -> tuple[str, list[Link]]:
    """Return a translation with spans, and where each of these is in the source and the result.

    Args:
        text: The translation of the remaining text.
        cuts: The spans, in order.
        places: The number of characters of the translation before each span.
        as_written: The indices of cuts with the same neighbors in source and translation, in the
            order of the translation; the spaces beside them are kept.
    """
    order = [*as_written, *range(len(cuts))]
    written, kept, end = "", list[Link](), 0
    for index in sorted(range(len(cuts)), key=lambda index: (places[index], order.index(index))):
        cut, stop = cuts[index], max(end, places[index])
        written = (written + text[end:stop]).rstrip()
        following = text[stop:].lstrip()
        end = len(text) - len(following)
        is_exact = index in as_written
        joins = cut.joins
        written += "" if joins[0] else _space(written[-1:], cut.before, _OPENING, is_exact=is_exact)
        kept.append((cut.span, (len(written), len(written) + len(cut.text))))
        written += cut.text
        is_exact = is_exact and cut.after != ""  # a prefix may end here
        if not joins[1]:
            written += _space(following[:1], cut.after, _CLOSING, is_exact=is_exact)
    return written + text[end:], sorted(kept)


def _space(neighbor: str, in_source: str, attached: str, *, is_exact: bool) -> str:
    """Return the space between a span and its neighbor in the translation, "" at its end.

    There is none beside `attached` characters and scripts without spaces. If it `is_exact`, it is
    the space of the source.
    """
    if is_exact:
        return " " * in_source.isspace()
    if not neighbor or neighbor in attached or _UNSPACED.match(neighbor):
        return ""
    has_none = in_source and not in_source.isspace() and not in_source.isalnum()
    return "" if has_none and not neighbor.isalnum() else " "


def place(
    source: str, cuts: Sequence[Cut], target: str, links: Sequence[Link], start: int = 0
) -> list[int]:
    """Return the number of characters of a translation before each span.

    A span goes to the place between words that best separates the translations of the text before
    and after it. Links count less the farther they are from the span, and more if they put a
    neighbor of the span beside the place. Without links, a span keeps its share of the text.

    Args:
        source: The sentence without the spans.
        cuts: The spans.
        target: Its translation.
        links: Spans of units of both that are linked.
        start: The number of characters at the start of the translation that no span may be in.
    """
    starts, spans = [start for start, _ in units(source)], units(target)
    target_starts, ends = [start for start, _ in spans], [0, *(end for _, end in spans)]
    gaps = [gap for gap in _gaps(target, spans) if ends[gap] >= start] or [len(spans)]
    linked = [(bisect_left(starts, a), bisect_left(target_starts, b)) for (a, _), (b, _) in links]
    places = []
    for cut in cuts:
        fits = _fits(linked, bisect_left(starts, cut.at), len(spans))
        share = cut.at / max(1, len(source)) * len(target)
        best = max(fits[gap] for gap in gaps) - _EQUAL
        suitable = (ends[gap] for gap in gaps if fits[gap] >= best)
        places.append(min(suitable, key=lambda place: abs(place - share)))
    return places


def _fits(linked: Sequence[tuple[int, int]], number: int, size: int) -> list[float]:
    """Return how well a span fits before each of the units of a translation, and at its end.

    Args:
        linked: The numbers of linked units of source and translation.
        number: The number of units of the source before the span.
        size: The number of units of the translation.
    """
    following, beside = [0.0] * (size + 1), [0.0] * (size + 1)
    for unit, linked_unit in linked:
        distance = unit - number
        if distance in (-1, 0):
            beside[linked_unit] += _BESIDE
            beside[linked_unit + 1] += _BESIDE
        weight = _DECAY**distance if distance >= 0 else -(_DECAY ** (-1 - distance))
        following[linked_unit + 1] += weight
    return [each - passed for each, passed in zip(beside, accumulate(following), strict=True)]


def _gaps(target: str, spans: Sequence[Span]) -> list[int]:
    """Return the places for spans: at edges of words, after opening and before closing marks."""
    gaps = [0]
    for index, ((start, end), (following, _)) in enumerate(pairwise([*spans, (len(target), 0)]), 1):
        left, right = target[start:end], target[following : following + 1]
        is_free = end < following or not right or _UNSPACED.match(left) or _UNSPACED.match(right)
        is_edge = right in _CLOSING and not target[following + 1 : following + 2].isalnum()
        if is_free or left in _OPENING or (is_edge and left[-1:].isalnum()):
            gaps.append(index)
    return gaps


def copied(source: str, spans: Sequence[Span], *, start: int) -> Output:
    """Return a source from `start` on as its translation, with single spaces between its spans."""
    text, kept, end = "", list[Link](), start
    for span in spans:
        text = (text + _SPACES.sub(" ", source[end : span[0]])).lstrip()
        kept.append((span, (len(text), len(text) + span[1] - span[0])))
        text, end = text + source[slice(*span)], span[1]
    text += _SPACES.sub(" ", source[end:]).rstrip()
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
    """Return the number of visible characters of a text in the form of output."""
    return len(_VISIBLE.findall(unicodedata.normalize("NFC", text)))


def _end_of(text: str, size: int) -> int:
    """Return the number of characters of a text that hold this many visible ones."""
    ends = [character.end() for character in _VISIBLE.finditer(text)]
    return [0, *ends][min(size, len(ends))]
