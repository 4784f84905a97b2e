"""Tags such as <2fr> before source sentences."""

import re
from collections.abc import Callable, Collection

from tfm.config import tag_problem
from tfm.errors import DataError

_LANGUAGE = re.compile(r"<2(.+)>|>>(.+)<<")
_CLOSED = re.compile(r"(>>[\w-]+<<)")  # OPUS-MT also reads text right after it
_SPACES = " \t\xa0\u3000"
_MARKS = "\ufeff\u200b"  # invisible, but not white space


def untagged(source: str, tag: str, is_tag: Callable[[str], bool], *, place: str) -> str:
    """Return a source sentence without the tag that will be put before it, if it has that tag.

    `is_tag` tests whether a word is a tag of the vocabulary, `place` names file and line.
    """
    first, rest = (*source.lstrip(_MARKS).split(maxsplit=1), "", "")[:2]
    if first == tag:
        return rest
    if tag_problem(first) is None and is_tag(first):
        raise DataError(
            f"{place} begins with the tag {first}, but is to get {tag}: remove its tag, or give "
            "text that has its tags without another"
        )
    return source


def tagged_language(tag: str) -> str:
    """Return the language that a tag chooses: fr for <2fr>, fra for >>fra<<; "" if none."""
    match = _LANGUAGE.fullmatch(tag)
    return "" if match is None else match[1] or match[2]


def split_tag(line: str, tags: Collection[str]) -> tuple[str, str]:
    """Return the tag at the start of a line, or "", and the line without it and spaces after it."""
    text = line.lstrip(_MARKS).lstrip()
    match = _CLOSED.match(text)
    tag = match[1] if match else text.split(maxsplit=1)[0] if text else ""
    start = line[: len(line) - len(text)]
    return (tag, start + text[len(tag) :].lstrip(_SPACES)) if tag in tags else ("", line)
