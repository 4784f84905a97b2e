"""The units of a text between which markup may stand: words, and characters of some scripts."""

import regex

Span = tuple[int, int]  # start and end, in characters

# Scripts whose words no space separates.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
# Letters and digits with their marks and joiners, and apostrophes between letters, but for that of
# "Bob's". Any other unit is what a reader takes for one character, such as an emoji with modifiers.
_UNIT = regex.compile(
    rf"(?:[[\p{{L}}\p{{N}}]--[{_UNSPACED}]][\p{{M}}\p{{Cf}}]*+(?:['’](?=\p{{L}})(?!s\b))?+)++|(?!\s)\X",
    regex.VERSION1,
)


def units(text: str) -> list[Span]:
    """Return the spans of the units of a text, without the white space between them."""
    return [unit.span() for unit in _UNIT.finditer(text)]
