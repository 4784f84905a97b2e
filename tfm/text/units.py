"""The units of a text: words, and characters of the scripts that have no spaces between words."""

import re
from collections.abc import Sequence

import regex

Span = tuple[int, int]  # start and end, in characters

# Scripts without spaces between words.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
# Letters and digits with their marks and joiners, and apostrophes between letters, but not in
# "Bob's". Other units are single characters as readers see them, such as an emoji with modifiers.
_UNIT = regex.compile(
    rf"(?:[[\p{{L}}\p{{N}}]--[{_UNSPACED}]][\p{{M}}\p{{Cf}}]*+(?:['’](?=\p{{L}})(?!s\b))?+)++|(?!\s)\X",
    regex.VERSION1,
)

# Characters of words that have spaces between them, and where no other word may begin or end.
IN_WORD = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}_\u200c\u200d]--[{_UNSPACED}]]", regex.VERSION1)
_UNSPACED_CHARACTER = regex.compile(rf"[{_UNSPACED}\u3000-\u303f\uff00-\uffef]")
_EDGE = regex.compile(
    rf"(?!\p{{M}})(?:(?<!{IN_WORD.pattern})|(?!{IN_WORD.pattern}))", regex.VERSION1
)


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces between words."""
    return _UNSPACED_CHARACTER.match(character) is not None


def edges(text: str) -> set[int]:
    """Return the positions in a text where a word may begin or end."""
    return {edge.start() for edge in _EDGE.finditer(text)}


def units(text: str) -> list[Span]:
    """Return the spans of the units of a text, without the white space between them."""
    return [unit.span() for unit in _UNIT.finditer(text)]


def blanked(text: str, spans: Sequence[Span]) -> str:
    """Return a text with an invisible character for each character of spans, but white space."""
    for start, end in spans:
        text = text[:start] + re.sub(r"\S", "\u200b", text[start:end]) + text[end:]
    return text
