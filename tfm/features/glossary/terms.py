"""Glossaries: files of terms with their translations."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import regex

from tfm.config import LATEST_NORMALIZATION
from tfm.data.text import read_lines
from tfm.errors import DataError
from tfm.features.glossary.finding import Finder, Pattern

_MAX_TERMS = 100_000
_MAX_CHARACTERS = 200
_MAX_COLUMNS = 3
_REPLACEMENT = "\ufffd"  # of bytes that are not UTF-8
_normalize = LATEST_NORMALIZATION.normalize


class Term(NamedTuple):
    """A term of the source language, and the translation that is required."""

    source: str
    target: str


class _Entry(NamedTuple):
    """A line of a glossary, its forms or its pattern, and its place for messages."""

    term: Term
    forms: tuple[str, ...]
    pattern: str | None
    place: str


def read_terms(path: Path, language: str) -> Finder[Term]:
    """Read a glossary for text in a language.

    Each line has a source term and its translation, separated by a tab. A third column may have
    other forms of the source term, separated by |, or a regular expression between slashes. Lines
    without text are skipped.

    Raises:
        DataError: The file is missing or not UTF-8, or has no terms, too many, or a line that is
            wrong or contradicts another one.
    """
    entries = _entries(path)
    forms: dict[str, _Entry] = {}
    for entry in entries:
        for form in (entry.term.source, *entry.forms):
            other = forms.setdefault(form, entry)
            if other.term.target != entry.term.target:
                raise DataError(
                    f'{entry.place}: "{form}" has the translation "{entry.term.target}", but '
                    f'"{other.term.target}" in {other.place.rpartition(", ")[2]}: keep one'
                )
    if not forms:
        raise DataError(
            f"{path} has no terms: write a source term, a tab and its translation on each line"
        )
    values = {form: entry.term for form, entry in forms.items()}
    return Finder(values, language, [_compiled(each) for each in entries if each.pattern])


def targets_of(path: Path) -> dict[str, str]:
    """Return the translations in a glossary, with the place of each for messages."""
    return {entry.term.target: entry.place for entry in _entries(path)}


def _entries(path: Path) -> Sequence[_Entry]:
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    return _read(path, stamp)


@functools.lru_cache(maxsize=2)
def _read(path: Path, stamp: int) -> Sequence[_Entry]:
    """Read the entries of a file; `stamp`, its last change, is for the cache."""
    return list(_parsed(path))


def _parsed(path: Path) -> Iterator[_Entry]:
    for number, line in enumerate(read_lines(path, strict=True), start=1):
        place = f"{path}, line {number:,}"
        if number > _MAX_TERMS:
            raise DataError(f"{path} has more than {_MAX_TERMS:,} lines: use a smaller glossary")
        columns = list(map(_normalize, line.decode().split("\t")))
        while columns and not columns[-1]:
            columns.pop()
        if columns:
            _check(columns, place)
            source, target, more = (*columns, "")[:_MAX_COLUMNS]
            is_pattern = len(more) > 1 and more[0] == more[-1] == "/"
            forms = () if is_pattern else tuple(filter(None, map(str.strip, more.split("|"))))
            yield _Entry(Term(source, target), forms, more[1:-1] if is_pattern else None, place)


def _check(columns: Sequence[str], place: str) -> None:
    """Raise DataError unless the columns of a line are a term, its translation, and forms."""
    advice = "write a source term, a tab and its translation"
    if len(columns) > _MAX_COLUMNS:
        raise DataError(f"{place} has {len(columns)} columns: {advice}, a tab and other forms")
    if not columns[0]:
        raise DataError(f"{place} has no source term: {advice}")
    if len(columns) == 1:
        raise DataError(f'{place} has no translation of "{columns[0]}": {advice}')
    if not columns[1]:
        raise DataError(f'{place} has an empty translation of "{columns[0]}": {advice}')
    if max(map(len, columns)) > _MAX_CHARACTERS:
        raise DataError(f"{place} has a term of more than {_MAX_CHARACTERS} characters: shorten it")
    if any(_REPLACEMENT in column for column in columns):
        raise DataError(f"{place} has U+FFFD, which stands for damaged text: correct it")


def _compiled(entry: _Entry) -> Pattern[Term]:
    """Return the pattern of an entry, which matches whole words."""
    try:
        compiled = regex.compile(f"(?:{entry.pattern})", regex.VERSION1)
        is_empty = compiled.fullmatch("", timeout=1) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError, MemoryError) as error:
        raise DataError(
            f"{entry.place}: /{entry.pattern}/ is not a regular expression ({error}): correct it"
        ) from error
    if is_empty:
        raise DataError(f"{entry.place}: /{entry.pattern}/ matches empty text: correct it")
    return Pattern(compiled, entry.place, entry.term)
