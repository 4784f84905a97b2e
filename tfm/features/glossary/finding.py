"""Finding terms in a text: whole words, or any characters of scripts without spaces."""

import re
import unicodedata
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import regex

from tfm.errors import DataError
from tfm.text.languages import SENTENCE_MARKS, base_language
from tfm.text.units import edges

ValueT = TypeVar("ValueT")

_TURKIC = ("az", "tr")  # whose i has a dot in upper case, too
_PATTERN_SECONDS = 1.0
_MAX_QUOTED = 40
_OPENING = r"[\p{P}\p{S}\s]*"
# Apostrophes and hyphens that are typed as ' and -, and characters of half and full width.
_TYPED = str.maketrans("\u2018\u2019\u02bb\u02bc\u00b4`\u2010\u2011\ufe63", "'" * 6 + "-" * 3)
_WIDTHS = re.compile("[\uff01-\uffee]+")
_NO_WORD = regex.compile(r"[/@_\\]|[.:]\w")
_STARTS = regex.compile(rf"(?:^|[{SENTENCE_MARKS}][\p{{Pe}}\p{{Pf}}\"']*\s){_OPENING}")


class Found(NamedTuple, Generic[ValueT]):
    """A term in a text."""

    start: int
    end: int
    value: ValueT


class Pattern(NamedTuple, Generic[ValueT]):
    """A regular expression of a term, and its place for messages."""

    regex: Any
    place: str
    value: ValueT


class Finder(Generic[ValueT]):
    """Finds texts, and matches of patterns; where several overlap, the longest, then the first.

    White space and Unicode are normalized before. Spellings of `folded` are equal.

    Args:
        values: What to find, with a value for each text.
        language: The language of the text, in which the first word of a sentence may be
            capitalized; None to distinguish case everywhere.
        patterns: Regular expressions.
    """

    def __init__(
        self,
        values: Mapping[str, ValueT],
        language: str | None,
        patterns: Sequence[Pattern[ValueT]] = (),
    ) -> None:
        values = {folded(text): value for text, value in values.items()}
        self._values, self._patterns = values, patterns
        self._capitalized: dict[str, ValueT] = {}
        if language is not None:
            for text, value in values.items():
                self._capitalized.setdefault(capitalized(text, language), value)
        sizes = defaultdict[str, set[int]](set)  # by first character
        for text in (*values, *self._capitalized):
            sizes[text[0]].add(len(text))
        self._sizes = {first: sorted(each, reverse=True) for first, each in sizes.items()}

    def values(self) -> Iterator[ValueT]:
        """Yield the values of all terms and patterns."""
        yield from self._values.values()
        yield from (pattern.value for pattern in self._patterns)

    def find(self, text: str) -> list[Found[ValueT]]:
        """Return the terms in a text, in its order, without overlaps."""
        return apart(self.find_all(text))

    def find_all(self, text: str) -> list[Found[ValueT]]:
        """Return all terms in a text, the longest first."""
        text = folded(text)
        places = edges(text)
        found = [*self._texts(text, places), *self._matches(text, places)]
        return sorted(found, key=lambda each: (each.start - each.end, each.start))

    def _texts(self, text: str, places: set[int]) -> Iterator[Found[ValueT]]:
        starts = sentence_starts(text)
        for start in places - {len(text)}:
            for size in self._sizes.get(text[start], ()):
                end = start + size
                part = text[start:end] if end in places else ""
                if part in self._values:
                    yield Found(start, end, self._values[part])
                elif part in self._capitalized and start in starts:
                    yield Found(start, end, self._capitalized[part])

    def _matches(self, text: str, places: set[int]) -> Iterator[Found[ValueT]]:
        for pattern in self._patterns:
            try:
                matches = list(pattern.regex.finditer(text, timeout=_PATTERN_SECONDS))
            except TimeoutError as error:
                quoted = text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"
                raise DataError(
                    f"{pattern.place}: the regular expression takes more than {_PATTERN_SECONDS:g} "
                    f's to search "{quoted}": write a simpler one'
                ) from error
            for match in matches:
                if match.end() > match.start() and places.issuperset(match.span()):
                    yield Found(match.start(), match.end(), pattern.value)


def folded(text: str) -> str:
    """Return a text with the apostrophes and hyphens of a keyboard, and usual widths."""
    if text.isascii() and "`" not in text:
        return text
    text = _WIDTHS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return text.translate(_TYPED)


def apart(found: Iterable[Found[ValueT]]) -> list[Found[ValueT]]:
    """Return the finds that overlap no earlier one, in the order of the text."""
    kept: list[Found[ValueT]] = []  # sorted
    for each in found:
        place = bisect(kept, each.start, key=lambda other: other.start)
        is_after = place == 0 or kept[place - 1].end <= each.start
        if is_after and (place == len(kept) or each.end <= kept[place].start):
            kept.insert(place, each)
    return kept


def sentence_starts(text: str) -> set[int]:
    """Return where the first words of sentences begin."""
    return {match.end() for match in _STARTS.finditer(text)}


def capitalized(text: str, language: str) -> str:
    """Return a text as the first word of a sentence; iPhone, addresses and the like keep theirs."""
    first, *_ = text.split(" ", 1)
    if text[1 : len(first)] != text[1 : len(first)].lower() or _NO_WORD.search(first):
        return text
    if text.startswith("i") and base_language(language) in _TURKIC:
        return f"İ{text[1:]}"
    return text[:1].title() + text[1:] if len(text[:1].title()) == 1 else text
