"""Text to translate, and what goes along with it, read some lines at a time."""

import select
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType

from tfm.data.text import decoded_lines
from tfm.errors import DataError
from tfm.inference.sentences import Chunk

# Lines that are sorted by length together: enough for full batches, few enough to come soon.
_CHUNK_LINES = 1_000
_MANY_LINES = 8_000
_CHUNK_CHARACTERS = 1 << 24
_BLOCK_BYTES = 1 << 16  # what a pipe holds

# Returns whether there is something to read from a file, or its end; told to, it waits for that.
IsReady = Callable[[int, bool], bool]


class TextChunks:
    r"""A text, and a file with a line for each of its lines; a context manager.

    Only "\n" ends a line, and carriage returns before it belong to the end.

    Args:
        path: The text; None for standard input.
        beside: The other file, if there is one.
    """

    def __init__(self, path: Path | None, beside: Path | None) -> None:
        self._path = path
        self._beside = beside
        self._names = [str(each) for each in (path or "standard input", beside) if each]
        self._columns: list[_ArrivingLines] = []
        self._chunk_lines = _CHUNK_LINES
        self._opened = ExitStack()

    def __enter__(self) -> "TextChunks":
        with self._opened:
            for path in (self._path, *([self._beside] if self._beside else [])):
                source = sys.stdin.fileno() if path is None else path
                file = self._opened.enter_context(FileIO(source, closefd=path is not None))
                self._columns.append(_ArrivingLines(file))
            self._opened = self._opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    def take_many(self) -> None:
        """Sort more lines together, for what is done with few in no time."""
        self._chunk_lines = _MANY_LINES

    def has_lines(self) -> bool:
        """Whether there are lines, or the end, to be read without waiting."""
        return all(column.has(1) for column in self._columns)

    def has_chunk(self) -> bool:
        """Whether there is as much as `read` yields at once, or all that is left."""
        return all(column.has(self._chunk_lines) for column in self._columns)

    def read(self, is_ready: IsReady | None = None) -> Iterator[Chunk]:
        """Read all lines, those that have arrived as soon as others would have to be waited for.

        Args:
            is_ready: To be asked before each reading from a file; the system is if not given.

        Yields:
            Lines, and those of the other file.

        Raises:
            DataError: A line is not UTF-8 or too long to be one, or one file has more lines.
        """
        for column in self._columns:
            column.is_ready = is_ready or _is_ready
        texts, *others = (
            decoded_lines(column.readline, name)
            for column, name in zip(self._columns, self._names, strict=True)
        )
        first_line = 1
        while True:
            lines, beside = self._take(texts, others, first_line)
            if not lines:
                return
            yield Chunk(first_line=first_line, lines=lines, beside=beside if others else None)
            first_line += len(lines)

    def _take(
        self, texts: Iterator[str], others: list[Iterator[str]], first_line: int
    ) -> tuple[list[str], list[str]]:
        """The next lines, and the other file's."""
        lines: list[str] = []
        beside: list[str] = []
        size = 0
        while not lines or (
            len(lines) < self._chunk_lines and size < _CHUNK_CHARACTERS and self.has_lines()
        ):
            row = [next(each, None) for each in (texts, *others)]
            if None in row:
                self._check_ended(row, first_line + len(lines) - 1)
                break
            for text, column in zip(row, (lines, beside), strict=False):
                column.append(text or "")
                size += len(text or "")
        return lines, beside

    def _check_ended(self, row: list[str | None], num_lines: int) -> None:
        """Raise DataError if one file goes on where the other has ended."""
        if row.count(None) < len(row):
            shorter, longer = self._names if row[0] is None else reversed(self._names)
            raise DataError(
                f"{shorter} ends after {num_lines:,} lines, before {longer}: "
                "line N of one must belong to line N of the other"
            )


def count_lines(path: Path) -> int:
    """The lines of a file."""
    num_ends, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            num_ends += block.count(b"\n")
            last = block[-1:]
    return num_ends + (last != b"\n")


class _ArrivingLines:
    """The lines of a file, of which one can know whether they are there.

    Attributes:
        is_ready: Asked before each reading.

    Args:
        file: The file, without a buffer of its own.
    """

    def __init__(self, file: FileIO) -> None:
        self.is_ready: IsReady = _is_ready
        self._file = file
        self._whole: deque[bytes] = deque()
        self._begun = bytearray()  # the line whose end is yet to come
        self._size = 0  # of all that was read and not handed on
        self._has_ended = False

    def has(self, num_lines: int) -> bool:
        """Whether so many lines, or all that are left, or very long ones, are there."""
        while (
            len(self._whole) < num_lines and self._size < _CHUNK_CHARACTERS and not self._has_ended
        ):
            if not self.is_ready(self._file.fileno(), False):
                return False
            self._read()
        return self._has_ended or bool(self._whole)

    def readline(self, limit: int, /) -> bytes:
        """Wait for the next line; of one that is longer than the limit, its start."""
        while not self._whole and len(self._begun) < limit and not self._has_ended:
            self.is_ready(self._file.fileno(), True)
            self._read()
        if not self._whole:
            self._whole.append(bytes(self._begun))
            self._begun.clear()
        line = self._whole.popleft()
        self._size -= len(line)
        return line[:limit]

    def _read(self) -> None:
        data = self._file.read(_BLOCK_BYTES)
        if data is None:  # another program was faster
            return
        self._has_ended = not data
        self._size += len(data)
        lines = data.split(b"\n")
        self._begun += lines[0]
        if len(lines) > 1:
            lines[0] = bytes(self._begun)
            self._begun = bytearray(lines.pop())
            self._whole.extend(line + b"\n" for line in lines)


def _is_ready(descriptor: int, wait: bool) -> bool:
    readable, _, _ = select.select([descriptor], [], [], None if wait else 0)
    return bool(readable)
