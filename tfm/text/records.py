"""Files whose records hold both sides of a text: tables (TSV, CSV) and JSON lines."""

import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tfm.errors import DataError
from tfm.text.files import suffix_of
from tfm.text.formats import JSON_LINES, RECORDS, TABLES, encoding_of
from tfm.text.languages import closest, named_language
from tfm.text.lines import BytesPair, UnusableLine, read_lines
from tfm.text.segments import join_lines

Column = int | str  # its number, from 1 on, or its name

_SAMPLE_LINES = 10_000
_MAX_TITLE, _MAX_SHOWN = 40, 200  # characters
_MAX_LINES = 100  # of a record, so that a quote without an end does not take the whole file
_DELIMITERS = {b",": "commas", b";": "semicolons", b"\t": "tabs"}
_DELIMITER_LINE = re.compile(rb'"?sep=([,;\t])"?')  # the first line of Excel
_TITLE = re.compile(
    r"(source|target|src|tgt|trg|translation|ref|reference|original|text)"
    r"([ _-]?(text|sentence|segment|language))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Records:
    """How the records of a file are read.

    Attributes:
        path: The file.
        columns: Numbers of the columns of source and target in a table, or their keys in JSON, in
            which dots separate the keys of nested objects.
        delimiter: What separates columns; empty for JSON lines.
        is_quoted: Whether cells may be in quotes, as spreadsheets write them.
        num_heads: The number of records before the first pair: of the titles of columns, and of
            the separator as Excel writes it.
        width: The number of columns, if no other is right.
        description: The encoding and the columns, for a message.
    """

    path: Path
    columns: tuple[Column, Column]
    description: str
    delimiter: bytes = b""
    is_quoted: bool = False
    num_heads: int = 0
    width: int | None = None

    @classmethod
    def of(
        cls, path: Path, columns: tuple[Column, Column] | None, languages: tuple[str, str]
    ) -> "Records":
        """Find out from the beginning of a file how its records are read.

        Columns that are not given are those whose titles or keys name the languages, or else the
        only two.
        """
        lines = [*islice(read_lines(path, strict=False, part=RECORDS), _SAMPLE_LINES)]
        if not any(lines):
            raise DataError(f"{path} is empty: it has no pairs")
        suffix, encoding = suffix_of(path.name), encoding_of(path)
        if suffix in JSON_LINES:
            keys = columns or _keys_of(path, next(filter(None, lines)), languages)
            description = f"{encoding}, keys {keys[0]} and {keys[1]}"
            return cls(path=path, columns=keys, description=description)
        is_tsv = suffix in TABLES[:1]
        is_quoted = not is_tsv or _are_quoted(lines)
        told = None if is_tsv else _DELIMITER_LINE.fullmatch(lines[0])
        lines = lines[told is not None :]
        delimiter = b"\t" if is_tsv else told[1] if told else _delimiter_of(lines)
        records = _records(lines, delimiter) if is_quoted else enumerate(lines)
        _, first = next(records, (0, b""))
        titles = [_text(cell).strip() for cell in _cells(first, delimiter, is_quoted=is_quoted)]
        numbers: list[Any] = [_find(each, titles) for each in columns or languages]
        is_found = None not in numbers and numbers[0] != numbers[1]
        if columns is not None and not is_found:
            missing = columns[numbers[0] is not None]
            raise DataError(
                f"{path} has no column {missing!r} in its first line, only {_excerpt(titles)}: "
                "choose names or numbers with --columns"
            )
        one, other = map(int, numbers) if is_found else (1, 2)
        cells = [*titles[one - 1 : one], *titles[other - 1 : other]]
        is_named = any(isinstance(column, str) for column in columns or ())
        are_titles = map(_is_title, cells, languages)
        has_titles = is_named or (len(cells) == 2 and all(are_titles))
        named = cells if has_titles else map(str, (one, other))
        separator = _DELIMITERS[delimiter] + " and in quotes" * is_quoted
        return cls(
            path=path,
            columns=(one, other),
            description=f"{encoding}, columns {_excerpt(named)}, separated by {separator}",
            delimiter=delimiter,
            is_quoted=is_quoted,
            num_heads=has_titles + (told is not None),
            width=None if is_found else 2,
        )

    def pairs(self, *, strict: bool, num_lines: int | None = None) -> Iterator[BytesPair]:
        """Yield source and target of each record, with line breaks in them as spaces.

        A record without both is an error if `strict`, and otherwise an `UnusableLine`. `num_lines`
        is the expected number of records.
        """
        errors = "strict" if strict else "surrogateescape"
        count = 0
        for number, record in self._numbered(strict=strict):
            count += 1
            try:
                is_huge = isinstance(record, UnusableLine)
                pair = (record, record) if is_huge else self._pair(record, errors)
            except ValueError as error:
                if strict:
                    raise DataError(f"{self.path}, line {number:,} {error}") from error
                pair = UnusableLine(record, "columns"), UnusableLine(b"", "columns")
            yield pair
        if num_lines not in (None, count):
            raise DataError(
                f"{self.path} has {count:,} lines, but should have {num_lines:,}: it is other "
                "text, or cut short"
            )

    def texts(self) -> Iterator[bytes]:
        """Yield the records of a table, and the cells of each."""
        for number, record in self._numbered(strict=True):
            try:
                yield from (record, *self._cells(record))
            except ValueError as error:
                raise DataError(f"{self.path}, line {number:,} {error}") from error

    def _numbered(self, *, strict: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the first line of each record after the titles, and the record."""
        lines = read_lines(self.path, strict=strict, part=RECORDS)
        records = _records(lines, self.delimiter) if self.is_quoted else enumerate(lines, 1)
        for number, record in islice(records, self.num_heads, None):
            if record or (self.delimiter and not self.is_quoted):
                yield number, record

    def _cells(self, record: bytes) -> list[bytes]:
        """Return the cells of a record; raise ValueError with what is wrong."""
        if cells := _cells(record, self.delimiter, is_quoted=self.is_quoted):
            return cells
        raise ValueError("has a quote that does not end, or text after one: correct it")

    def _pair(self, record: bytes, errors: str) -> BytesPair:
        """Return both sides of a record; raise ValueError with what is wrong."""
        if not self.delimiter:
            value = _parsed(record)
            source, target = (_at(value, str(column), errors) for column in self.columns)
            return source, target
        cells = self._cells(record)
        one, other = map(int, self.columns)
        if len(cells) < max(one, other) or self.width not in (None, len(cells)):
            separator = _DELIMITERS[self.delimiter]
            found = f"{len(cells)} columns separated by {separator}"
            needed = "two: choose" if self.width else f"{max(one, other)}: correct it, or choose"
            raise ValueError(
                f"has {found if len(cells) > 1 else f'no {separator[:-1]}'}, but needs {needed} "
                "those of source and target, as with --columns 2,3"
            )
        return cells[one - 1], cells[other - 1]


def _records(lines: Iterable[bytes], delimiter: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of the first line of each record, and the record, with its line breaks.

    A line whose quote does not end is one record.
    """
    numbered, ahead = enumerate(lines, 1), deque[tuple[int, bytes]]()
    while item := (ahead.popleft() if ahead else next(numbered, None)):
        number, record = item
        if _is_open(record):
            ahead.extend(islice(numbered, _MAX_LINES - len(ahead)))
            size = next((n for n, (_, line) in enumerate(ahead, 1) if _is_open(line)), 0)
            whole = b"\n".join([record, *(line for _, line in islice(ahead, size))])
            if _cells(whole, delimiter, is_quoted=True):
                record = whole
                ahead = deque(islice(ahead, size, None))
        yield number, record


def _is_open(line: bytes) -> bool:
    """Return whether a quote begins or ends in a line; quotes within quotes are doubled."""
    return line.count(b'"') % 2 == 1 and not isinstance(line, UnusableLine)


def _cells(record: bytes, delimiter: bytes, *, is_quoted: bool) -> list[bytes]:
    """Return the cells of a record, each as one line; none if its quotes are wrong."""
    if not is_quoted or b'"' not in record:
        return record.split(delimiter)
    cells = [cell.encode(errors="surrogateescape") for cell in _unquoted(record, delimiter)]
    return [join_lines(cell) if b"\n" in cell else cell for cell in cells]


def _unquoted(record: bytes, delimiter: bytes) -> list[str]:
    """Return the cells of a record without their quotes; none if its quotes are wrong."""
    with suppress(csv.Error, ValueError):
        [cells] = csv.reader([_text(record)], delimiter=delimiter.decode(), strict=True)
        return cells
    return []


def _delimiter_of(lines: Sequence[bytes]) -> bytes:
    """Return what separates columns: in the first line, if possible, and alike in most records."""
    return max(_DELIMITERS, key=lambda each: (each in b"".join(lines[:1]), _num_alike(lines, each)))


def _num_alike(lines: Sequence[bytes], delimiter: bytes) -> int:
    """Return how many lines have as many columns as most, if it is more than one."""
    records = _records(lines, delimiter)
    widths = Counter(len(_cells(record, delimiter, is_quoted=True)) for _, record in records)
    return max((count for width, count in widths.items() if width > 1), default=0)


def _are_quoted(lines: Sequence[bytes]) -> bool:
    """Return whether quotes in text with tabs are those of a spreadsheet, not of the text.

    They are if writing the cells of most records with quotes, or of all, gives the records again.
    """
    records = [record for _, record in _records(lines, b"\t")]
    quoted = [record for record in records if b'"' in record]
    num_minimal = sum(_is_written(record, csv.QUOTE_MINIMAL) for record in quoted)
    are_all = len(quoted) == len(records) and all(_is_written(r, csv.QUOTE_ALL) for r in records)
    return len(quoted) > 0 and (are_all or 2 * num_minimal > len(quoted))


def _is_written(record: bytes, quoting: Any) -> bool:
    written = io.StringIO(newline="")
    writer = csv.writer(written, "excel-tab", quoting=quoting, lineterminator="\n")
    writer.writerow(_unquoted(record, b"\t"))
    return written.getvalue() == f"{_text(record)}\n"


def _is_title(cell: str, side: str) -> bool:
    """Return whether a cell names a side of the text, not a sentence."""
    return bool(_TITLE.fullmatch(cell) or _find(side, [cell]))


def _find(name: Column, titles: Sequence[str]) -> int | None:
    """Return the number of the column that has a title, or the name or code of a language."""
    if isinstance(name, int):
        return name
    folded = [title.casefold() for title in titles]
    if name.strip().casefold() in folded:
        return folded.index(name.strip().casefold()) + 1
    codes = [(len(each) <= _MAX_TITLE and named_language(each)) or each for each in titles]
    found = next(filter(None, (closest(code, codes) for code in name.split("+"))), None)
    return None if found is None else codes.index(found) + 1


def _keys_of(path: Path, record: bytes, languages: tuple[str, str]) -> tuple[str, str]:
    """Return the keys of an object of JSON that name the languages, or of its "translation"."""
    try:
        value = _parsed(record)
    except ValueError as error:
        raise DataError(f"{path}, line 1 {error}") from error
    for prefix, inner in (("", value), ("translation.", value.get("translation"))):
        keys = [*inner] if isinstance(inner, dict) else []
        one, other = (_find(side, keys) for side in languages)
        if one and other:
            return f"{prefix}{keys[one - 1]}", f"{prefix}{keys[other - 1]}"
    raise DataError(
        f"{path}, line 1 has the keys {_excerpt(value)}: choose those of source and target, as "
        "with --columns translation.en,translation.de"
    )


def _parsed(record: bytes) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError with what is wrong."""
    try:
        value = json.loads(_text(record))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError('is no object of JSON, such as {"en": …, "de": …}')
    return value


def _at(value: Any, path: str, errors: str) -> bytes:
    """Return the text at a path of keys; raise ValueError with what is wrong."""
    try:
        for key in [path] if path in value else path.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        return join_lines(value.encode(errors=errors))
    except UnicodeEncodeError:
        raise ValueError(f"has half a character at {path}: correct it") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f"has no text at {path}: choose other keys with --columns") from None


def _excerpt(names: Iterable[str]) -> str:
    return " ".join(", ".join(names).split())[:_MAX_SHOWN]


def _text(line: bytes) -> str:
    return line.decode(errors="surrogateescape")
