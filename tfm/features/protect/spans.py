"""What is protected in a text: placeholders, tags, addresses, file names, hashtags and mentions.

Patterns prefer to miss something rare to touching ordinary text: "100 % sure", "$5", "3.5", "#1",
"e.g." and "and/or" are translated. Symbols are protected if the vocabulary lacks them.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import regex

from tfm.errors import DataError
from tfm.features.protect.placeholders import placeholders
from tfm.text.units import Span

_SECONDS = 1.0  # for a pattern of the user and a text

# Letters, digits and marks of scripts whose words are separated by spaces.
_WORD = (
    r"[[\w\p{M}\u200c\u200d]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
)
_URL = rf"(?:{_WORD}|[-.~:/?#\[\]@!$&'()*+,;=%])"
# The same in names of people, computers and folders, which particles of Korean may follow.
_NAME = rf"[{_WORD}--\p{{Hangul}}]"
_DOMAIN = rf"(?:{_NAME}(?:[{_NAME}\-]*{_NAME})?\.)+"
_EXTENSIONS = (
    "7z|avi|bak|bat|bin|bmp|bz2|cfg|conf|cpp|css|csv|db|dll|docx?|env|epub|exe|flac|gif|gz|hpp|html?"
    "|ini|ipynb|iso|jar|java|jpe?g|js|json|jsonl|jsx|log|md|mkv|mov|mp[34]|odt|ogg|pdf|php|png|pptx?"
    "|properties|ps1|py|rar|rb|rst|rtf|sh|sql|srt|svg|tar|tex|tiff?|toml|tsv|tsx|txt|vtt|wav|webp"
    "|xlsx?|xml|xz|ya?ml|zip"
)
_ROOTS = "api|app|bin|dev|etc|lib|mnt|opt|run|srv|src|sys|tmp|usr|var"
# What is protected besides the table of placeholders.
_PATTERNS = (
    # Addresses, with placeholders in them.
    rf"(?<address>(?<![A-Za-z\d])(?:[A-Za-z][A-Za-z\d+.-]{{1,15}}://|www\.)(?:{_URL}|\{{{{?\w+\}}?\}})+)",
    rf"(?<!{_NAME})(?:mailto:)?[{_NAME}.%+\-]{{0,63}}{_NAME}@{_DOMAIN}[A-Za-z]{{2,}}",
    rf"(?<address>(?<![\w@./-]){_DOMAIN}(?:(?:com|org|net|edu|gov|io|info)(?![\w-])(?:\.[a-z]{{2}}(?![\w-]))?|[a-z]{{2,3}}(?=/\w))(?:/{_URL}*)?)",
    # Paths, but for phonemes such as /e/, and the names of files.
    rf"(?<address>(?<![\w/.<:)])(?:~|\.\.?)?/(?!(?!{_ROOTS})[A-Za-z]{{1,3}}/(?![A-Za-z\d_.@+-]))[A-Za-z\d_.@+-]{{1,99}}+/(?:[{_NAME}.@+\-]{{1,99}}+/){{0,39}}+[{_NAME}.@+\-]*+)",
    r"(?<![A-Za-z\d])[A-Za-z]:\\(?:[\w.$-]+\\)*[\w.$-]*",
    rf"(?<!{_WORD}|[.\\/])(?:{_WORD}|[-./\\~]){{0,120}}{_WORD}\.(?i:{_EXTENSIONS})(?![A-Za-z\d]|\.[A-Za-z])",
    # Hashtags and mentions.
    rf"(?<!{_WORD}|[&/#])#(?={_WORD}*\p{{L}}){_WORD}+|#[\p{{Han}}\w]{{1,30}}#",
    rf"(?<!{_WORD}|[@./])@(?={_WORD}*\p{{L}}){_WORD}(?:{_WORD}|[.-](?=\w)){{1,60}}",
)
# A brace of a message or an expression; one kind of them between quotes is text.
_BRACE = regex.compile(
    r"""'[{}]+'|(?<=[?:(,=+]\s?)(["'])[^"'{}\n]{0,40}(?:\{+|\}+)[^"'{}\n]{0,40}\1|[{}]"""
)
_FINAL = ".,;:!?'*"  # marks after an address
_BRACKETS = {")": "(", "]": "["}
_NUMBERED = regex.compile(r"(?<![\w$])\$([1-9])(?![\w]|[.,]\d| ?(?:million|billion|Million|Mill))")
# A symbol with its selectors, joiners and the like; no accent in place of an apostrophe, no words
# in a square or circle, and no brackets.
SYMBOL = (
    r"(?!(?<=\p{L})\p{Sk}|[\u3200-\u33ff≪≫])"
    r"[\p{So}\p{Sm}\p{Sk}][\u200d\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f]*+"
)
# Symbols with the numbers beside them, and keycaps; what a mark changes is another symbol.
_SYMBOLS = regex.compile(
    rf"(?:\d[\d.,]*+)?+(?<symbols>(?:{SYMBOL})++)(?!\p{{M}})(?:\d(?:[\d.,]*\d)?|(?<=°)[CF]\b)?"
    r"|(?<symbols>[\d#*]\ufe0f?\u20e3)"
)
_BETWEEN = regex.compile(r"[!-/:-@\[-`{-~]{1,3}|(?<=[A-Za-z}])[x×]")


def protected_spans(
    text: str,
    patterns: Sequence[str],
    *,
    name: str,
    programs: frozenset[str] = frozenset(),
    lacks: Callable[[str], bool] | None = None,
) -> list[Span]:
    """Return the protected spans of a text, in order; adjacent spans become one.

    Args:
        text: The text.
        patterns: Patterns of the user, which take precedence.
        name: What the text is, for messages, such as "line 3".
        programs: Programs whose placeholders are protected even if they could be ordinary text.
        lacks: Returns whether the vocabulary lacks symbols, which are protected then.
    """
    spans: list[Span] = []
    for pattern in patterns:
        try:
            found = [each.span() for each in regex.finditer(pattern, text, timeout=_SECONDS)]
        except TimeoutError as error:
            raise DataError(
                f"{name}: the pattern {pattern} of protect takes more than {_SECONDS:g} second: "
                "write one that has no repetition within a repetition"
            ) from error
        spans = _added(spans, (_stripped(text, *span) for span in found))
    spans = _added(spans, _built_in(text, _table(programs)))
    spans = _added(spans, _numbered(text))
    if lacks is not None:
        symbols = _SYMBOLS.finditer(text)
        spans = _added(spans, (each.span() for each in symbols if lacks(each["symbols"])))
    return _joined(text, spans)


@cache
def _table(programs: frozenset[str]) -> Any:
    """Return one pattern of the built-in placeholders and the placeholders of programs."""
    rows = (row for row in placeholders() if row.use == "always" or row.is_of(programs))
    patterns = [*(row.pattern for row in rows), *_PATTERNS]
    return regex.compile("|".join(f"(?:{each})" for each in patterns), regex.VERSION1)


def _built_in(text: str, table: Any) -> Iterator[Span]:
    """Yield the spans of the built-in patterns, but for numbered arguments."""
    closed, position = dict(_braces(text)), 0
    while found := table.search(text, position):
        start, end = found.span()
        if found["open"]:
            end = closed.get(found.start("open"), start)
        elif found["address"]:
            end = _end_of_address(text, start, end)
        if start < end:
            yield start, end
        position = max(end, start + 1)


def _braces(text: str) -> Iterator[Span]:
    """Yield the place of each opening brace, and of the end of its closing brace.

    Braces between quotes may be text of messages and expressions.
    """
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            yield opened.pop(), brace.end()


def _numbered(text: str) -> Iterator[Span]:
    """Yield $1 and the like: $2 alone is a price, $1 and $2 are arguments."""
    numbered = [(int(found[1]), found.span()) for found in _NUMBERED.finditer(text)]
    numbers = {number for number, _ in numbered}
    if numbers == set(range(1, len(numbers) + 1)):
        yield from (span for _, span in numbered)


def _end_of_address(text: str, start: int, end: int) -> int:
    """Return the end of an address without the punctuation marks of its sentence."""
    while end > start:
        last, opening = text[end - 1], _BRACKETS.get(text[end - 1])
        is_open = opening and text.count(opening, start, end) >= text.count(last, start, end)
        if last not in _FINAL and (opening is None or is_open):
            break
        end -= 1
    return end


def _stripped(text: str, start: int, end: int) -> Span:
    """Return a span without white space at its ends."""
    found = text[start:end]
    return start + len(found) - len(found.lstrip()), start + len(found.rstrip())


def _added(spans: Sequence[Span], more: Iterator[Span]) -> list[Span]:
    """Add the spans that are not empty and overlap none of the others; return all in order."""
    bounds = [(0, 0), *spans, (sys.maxsize, sys.maxsize)]
    new = []
    for span in more:
        index = bisect_right(bounds, span)
        if span[0] < span[1] and bounds[index - 1][1] <= span[0] and span[1] <= bounds[index][0]:
            new.append(span)
    return sorted([*spans, *new])


def _joined(text: str, spans: Sequence[Span]) -> list[Span]:
    """Join spans that only ASCII punctuation or x separates, such as %Y-%m-%d and {w}x{h}."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and (joined[-1][1] == start or _BETWEEN.fullmatch(text, joined[-1][1], start)):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined
