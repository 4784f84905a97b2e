"""Glossaries: files of terms with their translations."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import regex

from tfm.config import LATEST_NORMALIZATION
from tfm.errors import DataError
from tfm.features.glossary.finding import Finder, Pattern
from tfm.storage.files import sha256_of
from tfm.text.lines import read_lines

_MAX_TERMS = 100_000
_MAX_CHARACTERS = 200
_MAX_COLUMNS = 3
_REPLACEMENT = "\ufffd"  # of bytes that are not UTF-8
_normalize = LATEST_NORMALIZATION.normalize


class Term(NamedTuple):
    """A term of the source language, the translation that is required, and where they are."""

    source: str
    target: str  # forms of it are separated by |
    place: str  # for messages

    @property
    def targets(self) -> tuple[str, ...]:
        """The forms of the translation, one of which is required."""
        return _parts(self.target)


class _Entry(NamedTuple):
    """A term of a glossary, and its other forms or its pattern."""

    term: Term
    forms: tuple[str, ...]
    pattern: str | None


def read_terms(path: Path, language: str) -> Finder[Term]:
    """Read a glossary for text in a language; it is kept until the file changes.

    Each line has a source term and its translation, separated by a tab. Several forms of the
    translation are separated by |: one of them is required. A third column may have other forms of
    the source term, separated by |, or a regular expression between slashes. Lines without text
    are skipped.

    Raises:
        DataError: The file is not UTF-8, or has no terms, too many, or a line that is
            wrong or contradicts another one.
    """
    return _read(path, sha256_of(path), language)


@functools.lru_cache(maxsize=4)
def _read(path: Path, digest: str, language: str) -> Finder[Term]:
    """Read a glossary; its digest is for the cache."""
    advice = "write a source term, a tab and its translation on each line"
    return _finder(list(_parsed(path)), language, f"{path} has no terms: {advice}")


def finder_of(terms: Mapping[str, str], language: str) -> Finder[Term]:
    """Return what finds terms, given with their translations, in text in a language.

    Raises:
        DataError: There are no terms or too many, or one that is wrong or contradicts another one.
    """
    if len(terms) > _MAX_TERMS:
        raise DataError(f"glossary has more than {_MAX_TERMS:,} terms: leave some out")
    entries = [
        _entry(list(map(_normalize, term)), f"glossary, term {number:,}")
        for number, term in enumerate(terms.items(), start=1)
    ]
    return _finder(entries, language, "glossary has no terms: give some, or leave it out")


def _finder(entries: Sequence[_Entry], language: str, if_none: str) -> Finder[Term]:
    forms: dict[str, _Entry] = {}
    for entry in entries:
        for form in (entry.term.source, *entry.forms):
            other = forms.setdefault(form, entry)
            if other.term.target != entry.term.target:
                raise DataError(
                    f'{entry.term.place}: "{form}" has the translation "{entry.term.target}", but '
                    f'"{other.term.target}" in {other.term.place.rpartition(", ")[2]}: keep one'
                )
    if not forms:
        raise DataError(if_none)
    values = {form: entry.term for form, entry in forms.items()}
    return Finder(values, language, [_compiled(each) for each in entries if each.pattern])


def _parsed(path: Path) -> Iterator[_Entry]:
    for number, line in enumerate(read_lines(path, strict=True), start=1):
        if number > _MAX_TERMS:
            raise DataError(f"{path} has more than {_MAX_TERMS:,} lines: use a smaller glossary")
        columns = list(map(_normalize, line.decode().split("\t")))
        while columns and not columns[-1]:
            columns.pop()
        if columns:
            yield _entry(columns, f"{path}, line {number:,}")


def _entry(columns: Sequence[str], place: str) -> _Entry:
    _check(columns, place)
    source, target, more = (*columns, "")[:_MAX_COLUMNS]
    is_pattern = len(more) > 1 and more[0] == more[-1] == "/"
    forms = () if is_pattern else _parts(more)
    return _Entry(Term(source, target, place), forms, more[1:-1] if is_pattern else None)


def _parts(column: str) -> tuple[str, ...]:
    """Return the forms in a column, which | separates."""
    return tuple(filter(None, map(str.strip, column.split("|"))))


def _check(columns: Sequence[str], place: str) -> None:
    """Raise DataError unless the columns of a line are a term, its translation, and forms."""
    advice = "write a source term, a tab and its translation"
    if len(columns) > _MAX_COLUMNS:
        raise DataError(f"{place} has {len(columns)} columns: {advice}, a tab and other forms")
    if not columns[0]:
        raise DataError(f"{place} has no source term: add one")
    if len(columns) == 1:
        raise DataError(f'{place} has no translation of "{columns[0]}": {advice}')
    if not _parts(columns[1]):
        raise DataError(f'{place} has an empty translation of "{columns[0]}": add one')
    if max(map(len, columns)) > _MAX_CHARACTERS:
        raise DataError(f"{place} has a term of more than {_MAX_CHARACTERS} characters: shorten it")
    if any(_REPLACEMENT in column for column in columns):
        raise DataError(f"{place} has U+FFFD, which stands for damaged text: correct it")


def _compiled(entry: _Entry) -> Pattern[Term]:
    """Return the pattern of an entry, which matches whole words."""
    place = entry.term.place
    try:
        compiled = regex.compile(f"(?:{entry.pattern})", regex.VERSION1)
        is_empty = compiled.fullmatch("", timeout=1) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError, MemoryError) as error:
        raise DataError(
            f"{place}: /{entry.pattern}/ is not a regular expression ({error}): correct it"
        ) from error
    if is_empty:
        raise DataError(f"{place}: /{entry.pattern}/ matches empty text: correct it")
    return Pattern(compiled, place, entry.term)
