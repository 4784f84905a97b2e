"""What is protected in a text: placeholders, tags, addresses, file names, hashtags and mentions.

Patterns prefer to miss something rare to touching ordinary text: "100 % sure", "$5", "3.5", "#1",
"e.g." and "and/or" are translated.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import regex

from tfm.data.units import Span
from tfm.errors import DataError

_SECONDS = 1.0  # for a pattern of the user and a text

# Letters, digits and marks of scripts whose words are separated by spaces.
_WORD = (
    r"[[\w\p{M}\u200c\u200d]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]"
)
_URL = rf"(?:{_WORD}|[-.~:/?#\[\]@!$&'()*+,;=%])"
_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+"
_EXTENSIONS = (
    "7z|avi|bak|bat|bin|bmp|bz2|cfg|conf|cpp|css|csv|db|dll|docx?|env|epub|exe|flac|gif|gz|hpp|html?"
    "|ini|ipynb|iso|jar|java|jpe?g|js|json|jsonl|jsx|log|md|mkv|mov|mp[34]|odt|ogg|pdf|php|png|pptx?"
    "|properties|ps1|py|rar|rb|rst|rtf|sh|sql|srt|svg|tar|tex|tiff?|toml|tsv|tsx|txt|vtt|wav|webp"
    "|xlsx?|xml|xz|ya?ml|zip"
)
# A conversion of printf: %s, %-5.2f, %1$s, %(n)d, %@. No space belongs to it, unlike in 5 % sicher.
_CONVERSION = (
    r"(?<![\d%])%(?:\([^()\s]{1,60}\)|\d+\$)?[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?"
    r"(?:hh?|ll?|[zjtL])?[diouxXeEfFgGcs@p](?![A-Za-z]{3})"
)
_PATTERNS = (
    # {{x}}, {{#each y}}; ${x}, %{x}, #{x}; {}, {0}, {0:N2}, {name!r:>10}, {n, number}.
    r"\{\{[^{}\n]{1,200}\}\}",
    r"[$%#]\{[^{}\n]{1,200}\}",
    r"\{(?:(?=[\w$\[])(?:[\w.$-]|\[\w+\]){1,200}+)?+(?:![rsa])?(?::[^{}\s]{0,40})?\}",
    r"\{\w+, ?(?:number|date|time|spellout|ordinal|duration)(?:, ?[^{}\n]{1,40})?\}",
    # Conversions; %Y, %VALUE%, %%.
    _CONVERSION,
    r"(?<![\d%])%[YmdHMSBbyjpAaIZ](?![A-Za-z\d])",
    r"%[A-Z][A-Z\d_]+%|%%",
    # $name, $HOME; $1 is dealt with below.
    r"(?<![\w$])\$(?:[a-z_][A-Za-z\d_]+|[A-Z][A-Z\d_]{3,})",
    # <ph id="1"/>, <b>, </b>, <0>.
    r"</?[a-z][\w:.-]*(?:\s+[\w:.-]+=(?:\"[^\"<>]*\"|'[^'<>]*'))*\s*/?>|</?\d{1,3}/?>",
    # Addresses, with placeholders in them.
    rf"(?<![A-Za-z\d])(?:[A-Za-z][A-Za-z\d+.-]{{1,15}}://|www\.)(?:{_URL}|\{{{{?\w+\}}?\}})+",
    rf"(?<![A-Za-z\d])(?:mailto:)?[A-Za-z\d._%+-]{{0,63}}[A-Za-z\d]@{_DOMAIN}[A-Za-z]{{2,}}",
    rf"(?<![\w@./-]){_DOMAIN}(?:(?:com|org|net|edu|gov|io|info)(?![\w-])|[a-z]{{2,3}}(?=/\w))(?:/{_URL}*)?",
    # Paths and the names of files.
    r"(?<![\w/.<:])(?:~|\.\.?)?/(?:[A-Za-z\d_.@+-]{1,99}+/){1,40}+[A-Za-z\d_.@+-]*+",
    r"(?<![A-Za-z\d])[A-Za-z]:\\(?:[\w.$-]+\\)*[\w.$-]*",
    rf"(?<!{_WORD}|[.\\/])(?:{_WORD}|[-./\\~]){{0,120}}{_WORD}\.(?i:{_EXTENSIONS})(?![A-Za-z\d]|\.[A-Za-z])",
    # Hashtags and mentions.
    rf"(?<!{_WORD}|[&/#])#(?={_WORD}*\p{{L}}){_WORD}+|#[\p{{Han}}\w]{{1,30}}#",
    rf"(?<!{_WORD}|[@./])@(?={_WORD}*\p{{L}}){_WORD}(?:{_WORD}|[.-](?=\w)){{1,60}}",
)
_BUILT_IN = regex.compile("|".join(f"(?:{each})" for each in _PATTERNS), regex.VERSION1)
_FINAL = ".,;:!?'*"  # marks after an address
_BRACKETS = {")": "(", "]": "["}
_NUMBERED = regex.compile(r"(?<![\w$])\$([1-9])(?![\w]|[.,]\d| ?(?:million|billion|Million|Mill))")
_BETWEEN = regex.compile(r"[!-/:-@\[-`{-~]{1,3}")


def protected_spans(text: str, patterns: Sequence[str], *, name: str) -> list[Span]:
    """Return the protected spans of a text, in order; adjacent ones become one.

    Args:
        text: The text.
        patterns: Patterns of the user, which take precedence.
        name: What the text is, for messages, such as "line 3".

    Raises:
        DataError: A pattern takes too long.
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
    spans = _added(spans, _built_in(text))
    return _joined(text, _added(spans, _numbered(text)))


def _built_in(text: str) -> Iterator[Span]:
    """Yield the spans of the built-in patterns, but for numbered arguments."""
    for found in _BUILT_IN.finditer(text):
        start, end = found.span()
        if "://" in found[0] or "www." in found[0] or "/" in found[0]:
            end = _end_of_address(text, start, end)
        yield start, end


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
    """Join spans that only ASCII punctuation separates, such as %Y-%m-%d."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and (joined[-1][1] == start or _BETWEEN.fullmatch(text, joined[-1][1], start)):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined
