"""Glossaries: files of terms with their translations."""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import regex

from tfm.config import LATEST_NORMALIZATION
from tfm.disk.files import sha256_of
from tfm.errors import DataError
from tfm.features.glossary.finding import Finder, Pattern, folded
from tfm.reporting import say
from tfm.text.languages import named_language
from tfm.text.lines import read_lines

_MAX_TERMS = 100_000
_MAX_CHARACTERS = 200
_MAX_SKIPPED = 10  # rows without a translation that a warning names
# Parts of a title besides the name of a language.
_TITLE = regex.compile(
    r"(?<!\p{L})(?:language|note|original|phrase|source|src|target|terms?|text|tgt|translation|trg"
    r"|word)(?!\p{L})|[\W_]+"
)
_QUOTED = regex.compile(r'\s*"((?:[^"]|"")*)"\s*')
_REPLACEMENT = "\ufffd"  # of bytes that are not UTF-8
_normalize = LATEST_NORMALIZATION.normalize


class Term(NamedTuple):
    """A term of the source language, the translation that is required, and where they are."""

    source: str  # forms of it are separated by |
    target: str  # so are these
    place: str  # for messages
    pattern: str | None = None  # a regular expression instead of forms

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the source term."""
        return () if self.pattern else _parts(self.source)

    @property
    def targets(self) -> tuple[str, ...]:
        """The forms of the translation, one of which is required."""
        return _parts(self.target)


def read_terms(path: Path, language: str, target: str = "") -> Finder[Term]:
    """Read a glossary for text in a language; it is kept until the file changes.

    Each line has a source term and its translation, separated by a tab, as in OmegaT. Several forms
    are separated by |: any form of the source term is found, and one form of the translation is
    required. Instead of forms, the source term may be a regular expression between slashes. Further
    columns are comments. Cells may be in double quotes, as spreadsheets write them. Skipped are
    lines without text, lines that begin with #, and a first line that names the languages of the
    columns, or calls them source and target. A warning names the lines with an empty translation,
    which are skipped, too.
    """
    return _read(path, sha256_of(path), language, target)


@functools.lru_cache(maxsize=4)
def _read(path: Path, digest: str, language: str, target: str) -> Finder[Term]:
    """Read a glossary; its digest is for the cache."""
    codes = map(named_language, filter(None, f"{language}+{target}".split("+")))
    languages = frozenset(filter(None, codes))
    advice = "write a source term, a tab and its translation on each line"
    return _finder([*_parsed(path, languages)], language, f"{path} has no terms: {advice}")


def finder_of(terms: Mapping[str, str], language: str) -> Finder[Term]:
    """Return a finder of terms, given with their translations, in text in a language.

    Both may have forms, as in a file; there are no regular expressions.
    """
    if len(terms) > _MAX_TERMS:
        raise DataError(f"glossary has more than {_MAX_TERMS:,} terms: leave some out")
    columns = (list(map(_normalize, term)) for term in terms.items())
    places = (f"glossary, term {number:,}" for number in range(1, len(terms) + 1))
    found = [_term(*each, has_patterns=False) for each in zip(columns, places, strict=True)]
    return _finder(found, language, "glossary has no terms: give some, or leave it out")


def _finder(terms: Sequence[Term], language: str, if_none: str) -> Finder[Term]:
    forms: dict[str, Term] = {}
    for term in terms:
        for form in term.forms:
            other = forms.setdefault(folded(form), term)
            if other.target != term.target:
                raise DataError(
                    f'{term.place}: "{form}" has the translation "{term.target}", but '
                    f'"{other.target}" in {other.place.rpartition(", ")[2]}: keep one, or join '
                    "both by |"
                )
    if not terms:
        raise DataError(if_none)
    return Finder(forms, language, [_compiled(each) for each in terms if each.pattern])


def _parsed(path: Path, languages: Collection[str]) -> Iterator[Term]:
    num_rows, skipped = 0, list[str]()
    for number, line in enumerate(read_lines(path, strict=True), start=1):
        if number > _MAX_TERMS:
            raise DataError(f"{path} has more than {_MAX_TERMS:,} lines: use a smaller glossary")
        columns = [_normalize(_unquoted(cell)) for cell in line.decode().split("\t")]
        if not any(columns) or columns[0].startswith("#"):
            continue
        num_rows += 1
        place = f"{path}, line {number:,}"
        if num_rows == 1 and len(columns) > 1 and _are_titles(columns, languages):
            say(f'glossary: {place} has titles, "{columns[0]}" and "{columns[1]}", and no term')
        elif len(columns) > 1 and _parts(columns[0]) and not _parts(columns[1]):
            skipped.append(f'{number:,} ("{columns[0]}")')
        else:
            yield _term(columns, place)
    if skipped:
        lines, more = ", ".join(skipped[:_MAX_SKIPPED]), len(skipped) - _MAX_SKIPPED
        lines += f" and {more:,} more" if more > 0 else ""
        say(f"warning: {path} has empty translations, which are skipped: line {lines}")


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return cell if quoted is None else quoted[1].replace('""', '"')


def _are_titles(columns: Sequence[str], languages: Collection[str]) -> bool:
    """Return whether columns have names of languages, or words such as source and target.

    Codes are words, too: if the languages of both sides are known, only theirs count.
    """
    titles = [regex.sub(r"\(.*?\)", "", column).strip().lower() for column in columns[:2]]
    names = ["-".join(_TITLE.sub(" ", title).split()) for title in titles]
    codes = [named_language(name) if name else name for name in names]
    for title, name, code in zip(titles, names, codes, strict=True):
        is_code = len(name) in (2, 3) and name.isascii()
        is_foreign = is_code and len(languages) > 1 and code not in languages
        if not any(map(str.isalpha, title)) or code is None or is_foreign:
            return False
    return titles[0] != titles[1] and (codes[0] != codes[1] or not codes[0])


def _term(columns: Sequence[str], place: str, *, has_patterns: bool = True) -> Term:
    _check(columns, place)
    source, target = columns[:2]
    is_pattern = has_patterns and len(source) > 2 and source[0] == source[-1] == "/"
    return Term(source, target, place, source[1:-1] if is_pattern else None)


def _parts(column: str) -> tuple[str, ...]:
    """Return the forms in a column, which | separates."""
    return tuple(filter(None, map(str.strip, column.split("|"))))


def _check(columns: Sequence[str], place: str) -> None:
    """Raise DataError unless the first columns of a line are a term and its translation."""
    advice = "write a source term, a tab and its translation"
    if not _parts(columns[0]):
        raise DataError(f"{place} has no source term: add one")
    if len(columns) == 1 and regex.search("[,;]", columns[0]):
        raise DataError(f'{place} has no tab, "{columns[0]}" may be CSV: {advice}')
    if len(columns) == 1:
        raise DataError(f'{place} has no translation of "{columns[0]}": {advice}')
    if not _parts(columns[1]):
        raise DataError(f'{place} has an empty translation of "{columns[0]}": add one')
    if max(map(len, columns[:2])) > _MAX_CHARACTERS:
        raise DataError(f"{place} has a term of more than {_MAX_CHARACTERS} characters: shorten it")
    if any(_REPLACEMENT in column for column in columns[:2]):
        raise DataError(f"{place} has U+FFFD, which stands for damaged text: correct it")


def _compiled(term: Term) -> Pattern[Term]:
    """Return the pattern of a term, which matches whole words."""
    place, pattern = term.place, term.pattern or ""
    try:
        compiled = regex.compile(f"(?:{folded(pattern)})", regex.VERSION1)
        is_empty = compiled.fullmatch("", timeout=1) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError, MemoryError) as error:
        raise DataError(
            f"{place}: /{pattern}/ is not a regular expression ({error}): correct it"
        ) from error
    if is_empty:
        raise DataError(f"{place}: /{pattern}/ matches empty text: correct it")
    return Pattern(compiled, place, term)
