"""Reading lines to translate as they arrive, along with the lines of a second file."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path

from typing_extensions import override

from tfm.errors import DataError
from tfm.text.files import is_readable
from tfm.text.formats import open_text
from tfm.text.lines import BYTE_ORDER_MARK, STANDARD_INPUT, decode_lines
from tfm.text.segments import REFERENCE, SOURCE
from tfm.translation.batches import CHUNK_LINES
from tfm.translation.steps import Segment

_CHUNK_CHARACTERS = 1 << 24
MAX_DOCUMENT_BYTES = 10 << 20
_BLOCK_BYTES = 1 << 16  # the capacity of a pipe


class LineReader:
    r"""Reads a text and optionally a second file of equally many lines; a context manager.

    Only "\n" ends a line; carriage returns before it are stripped. A byte order mark at the start
    is dropped.

    Args:
        path: The text; None for standard input.
        paired_path: The second file, or None.
        chunk_lines: Maximum number of lines per chunk.
        keep_ends: Whether lines keep their line ends.
        parts: The part of each that is read, as `open_text` says.
    """

    def __init__(
        self,
        path: Path | None,
        paired_path: Path | None,
        *,
        chunk_lines: int = CHUNK_LINES,
        keep_ends: bool = False,
        parts: Sequence[str | None] = (SOURCE, REFERENCE),
    ) -> None:
        self._paths = [path] if paired_path is None else [path, paired_path]
        self._parts = parts
        self._names = [str(each or STANDARD_INPUT) for each in self._paths]
        self._columns: list[_ArrivingLines] = []
        self.chunk_lines = chunk_lines
        self._keep_ends = keep_ends
        self._opened = ExitStack()

    def __enter__(self) -> "LineReader":
        with self._opened:
            for path, part in zip(self._paths, self._parts, strict=False):
                source = sys.stdin.fileno() if path is None else path
                file = self._opened.enter_context(FileIO(source, closefd=path is not None))
                self._columns.append(_ArrivingLines(file, path, part))
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def num_waiting(self) -> int:
        """Return the number of lines of the text that have arrived, at most a block."""
        return self._columns[0].num_waiting()

    def __iter__(self) -> Iterator[list[Segment]]:
        """Yield all lines in chunks; lines that have arrived never wait for later ones."""
        texts, *paired_texts = (
            _without_mark(decode_lines(column.readline, path, keep_ends=self._keep_ends))
            for column, path in zip(self._columns, self._paths, strict=True)
        )
        num_lines = 0
        error: DataError | None = None
        while error is None:
            lines: list[Segment] = []
            try:
                self._take(texts, paired_texts, num_lines, lines)
            except DataError as caught:
                error = caught
            if lines:
                yield lines
            elif error is None:
                return
            num_lines += len(lines)
        raise error

    def _take(
        self,
        texts: Iterator[str],
        paired_texts: list[Iterator[str]],
        num_before: int,
        lines: list[Segment],
    ) -> None:
        """Add the next lines of the text, and of the second file if there is one, to `lines`."""
        size = 0
        while not lines or (
            len(lines) < self.chunk_lines
            and size < _CHUNK_CHARACTERS
            and all(column.has_line() for column in self._columns)
        ):
            number = num_before + len(lines) + 1
            row = [next(column, None) for column in (texts, *paired_texts)]
            if None in row:
                self._check_ended(row, number - 1)
                return
            words = [text or "" for text in row]
            lines.append(Segment(number, *words))
            size += sum(map(len, words))

    def _check_ended(self, row: list[str | None], num_lines: int) -> None:
        """Raise DataError if one file has ended before the other."""
        if row.count(None) < len(row):
            shorter, longer = self._names if row[0] is None else reversed(self._names)
            raise DataError(
                f"{shorter} ends after {num_lines:,} lines, but {longer} has more: "
                "line N of one must belong to line N of the other"
            )


class DocumentReader(LineReader):
    """Reads a text as one unit, with its byte order mark."""

    @override
    def __iter__(self) -> Iterator[list[Segment]]:
        """Yield the text, unless it is empty."""
        num_bytes = 0

        def readline(_: int) -> bytes:
            nonlocal num_bytes
            line = self._columns[0].readline(MAX_DOCUMENT_BYTES + 1)
            num_bytes += len(line)
            if num_bytes > MAX_DOCUMENT_BYTES:
                raise DataError(
                    f"{self._names[0]} has more than {MAX_DOCUMENT_BYTES >> 20} MiB: divide it, "
                    "because a document is read as a whole"
                )
            return line

        text = "".join(decode_lines(readline, self._paths[0], keep_ends=True))
        if text:
            yield [Segment(1, text, unit="document")]


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    for first in lines:
        yield first.removeprefix(BYTE_ORDER_MARK)
        yield from lines


def count_lines(path: Path, part: str | None = SOURCE) -> int:
    """Count the lines of a file of text."""
    num_ends, last = 0, b"\n"
    with path.open("rb") as file:
        text = open_text(file, path, part)
        while block := text.read(1 << 20):
            num_ends += block.count(b"\n")
            last = block[-1:]
    return num_ends + (last != b"\n")


class _ArrivingLines:
    """The lines of an unbuffered file or pipe, with a test whether reading one would block.

    Reading compressed text is taken not to: its programs send it in blocks of many lines.
    """

    def __init__(self, file: FileIO, path: Path | None, part: str | None) -> None:
        self._file, self._text = file, open_text(file, path, part)
        self._lines: deque[bytes] = deque()
        self._partial = bytearray()  # the line whose end has not arrived yet
        self._has_ended = False
        self._error: DataError | None = None  # after these lines

    def has_line(self) -> bool:
        """Test whether a line, or the end of the file, can be read without blocking."""
        while not (self._lines or self._has_ended or len(self._partial) >= _CHUNK_CHARACTERS):
            if not self._is_readable(wait=False):
                return False
            self._read()
        return bool(self._lines) or self._has_ended

    def num_waiting(self) -> int:
        """Return the number of lines that have been read ahead, after trying to read some."""
        self.has_line()
        return len(self._lines)

    def readline(self, limit: int, /) -> bytes:
        """Return the next line, or the start of a line beyond the limit; block until it arrives."""
        while not self._lines and len(self._partial) < limit and not self._has_ended:
            self._is_readable(wait=True)
            self._read()
        if not self._lines and self._error is not None:
            raise self._error
        if not self._lines:
            self._lines.append(bytes(self._partial))
            self._partial.clear()
        return self._lines.popleft()[:limit]

    def _is_readable(self, *, wait: bool) -> bool:
        return self._text.is_packed or is_readable(self._file.fileno(), wait=wait)

    def _read(self) -> None:
        data: bytes | None = b""
        try:
            data = self._text.read_arrived(_BLOCK_BYTES)
        except DataError as error:
            self._error = error
        if data is None:  # too little to tell the format, or another reader of the pipe took it
            return
        self._has_ended = not data
        lines = data.split(b"\n")
        self._partial += lines[0]
        if len(lines) > 1:
            lines[0] = bytes(self._partial)
            self._partial = bytearray(lines.pop())
            self._lines.extend(line + b"\n" for line in lines)
