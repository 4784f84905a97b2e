"""The part of YAML that Marian writes: a mapping of scalars or lists of scalars, line by line.

A vocabulary maps each piece to its id, and settings are plain values.
"""

import re
from collections.abc import Iterable, Sequence

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'"""
# Plain scalars start with no indicator, and end before ": " or " #".
_PLAIN = r"[^\s\"'\[\]{}#&*!|>%@`,].*?"
_ENTRY = re.compile(rf"({_QUOTED}|{_PLAIN})\s*:(?:\s+(.*))?")
_SCALAR = re.compile(rf"({_QUOTED}|{_PLAIN})(?:\s+#.*)?\s*")
_LIST = re.compile(r"\[(.*)\]\s*")
_MAX_LENGTH = 1 << 12  # the patterns take quadratic time
_IGNORED = re.compile(r"\s*(#.*)?|---|\.\.\.")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_CHARACTERS = dict(
    zip('0abtnvfreN_LP "/\\', '\0\a\b\t\n\v\f\r\x1b\x85\xa0\u2028\u2029 "/\\', strict=True)
)


def read_mapping(lines: Iterable[str]) -> dict[str, str | Sequence[str]]:
    """Return the values of a YAML mapping as text, by key.

    Raises:
        ValueError: A line is other YAML than this, or has a key again; the message has its number.
    """
    found: dict[str, str | Sequence[str]] = {}
    items: list[str] = []  # of the last key, if it has no value in its line
    for number, line in enumerate(lines, start=1):
        if _IGNORED.fullmatch(line):
            continue
        if line.startswith((" ", "- ")):
            items += _items(line.strip(), number)
            continue
        entry = _matched(_ENTRY, line, number)
        if (key := _text(entry[1], number)) in found:
            raise ValueError(f"line {number} has a key again")
        items = []
        found[key] = _value(entry[2], number) if entry[2] else items
    return found


def _value(text: str, number: int) -> str | Sequence[str]:
    if _LIST.fullmatch(text):
        return _items(text, number)
    return _text(_matched(_SCALAR, text, number)[1], number)


def _items(text: str, number: int) -> list[str]:
    """Return the items of a line of a list, which may be a list in brackets."""
    if found := _LIST.fullmatch(text):
        texts = [each for each in found[1].split(",") if each.strip()]
    else:
        texts = [text.removeprefix("- ")]
    return [_text(_matched(_SCALAR, each.strip(), number)[1], number) for each in texts]


def _matched(pattern: re.Pattern[str], text: str, number: int) -> re.Match[str]:
    if len(text) > _MAX_LENGTH or (found := pattern.fullmatch(text)) is None:
        raise ValueError(f"line {number} is not YAML as Marian writes it")
    return found


def _text(scalar: str, number: int) -> str:
    """Return the text of a scalar without its quotes."""
    if scalar.startswith("'"):
        return scalar[1:-1].replace("''", "'")
    if not scalar.startswith('"'):
        return scalar
    try:
        return _ESCAPE.sub(_character, scalar[1:-1])
    except (LookupError, ValueError, OverflowError) as error:
        raise ValueError(f"line {number} has an unknown escape") from error


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else _CHARACTERS[escape[4]]
