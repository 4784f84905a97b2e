"""Text to translate, and what goes along with it, read some lines at a time."""

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tfm.data.text import decoded_lines
from tfm.errors import DataError
from tfm.translator.sentences import Chunk

# Lines that are sorted by length together: enough for full batches, few enough to come soon.
_CHUNK_LINES = 1_000
_CHUNK_CHARACTERS = 1 << 24

Wait = Callable[[int], None]


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
        self._files: list[_PatientFile] = []
        self._names = [str(each) for each in (path or "standard input", beside) if each]
        self._readers: list[io.BufferedReader] = []
        self._opened = ExitStack()

    def __enter__(self) -> "TextChunks":
        with self._opened:
            for path in (self._path, *([self._beside] if self._beside else [])):
                source = sys.stdin.fileno() if path is None else path
                file = _PatientFile(source, closefd=path is not None)
                self._files.append(file)
                self._readers.append(self._opened.enter_context(io.BufferedReader(file)))
            self._opened = self._opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    @property
    def is_at_hand(self) -> bool:
        """Whether all of it can be read without waiting for anybody."""
        return all(stat.S_ISREG(os.fstat(file.fileno()).st_mode) for file in self._files)

    def read(self, wait: Wait | None = None) -> Iterator[Chunk]:
        """Read all lines.

        Args:
            wait: To be called, with a file's descriptor, before each reading from it, which may
                take long: returns when there is something to read.

        Yields:
            Lines, and those of the other file.

        Raises:
            DataError: A line is not UTF-8 or too long to be one, or one file has more lines.
        """
        for file in self._files:
            file.wait = wait
        texts, *others = map(decoded_lines, self._readers, self._names)
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
        while len(lines) < _CHUNK_LINES and size < _CHUNK_CHARACTERS:
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


class _PatientFile(io.FileIO):
    """A file that can be waited for before each reading."""

    wait: Wait | None = None

    def readinto(self, buffer: Any) -> int | None:
        if self.wait is not None:
            self.wait(self.fileno())
        return super().readinto(buffer)
