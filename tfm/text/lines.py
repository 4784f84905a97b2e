"""Read text line by line."""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tfm.errors import DataError, explain_os_error
from tfm.text.files import PIPE, TextFile, conversion
from tfm.text.formats import open_text

BYTE_ORDER_MARK = "\ufeff"
STANDARD_INPUT = "standard input"

_MAX_LINE_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 19  # fits into the CPU's caches
_PAIR_OVERHEAD_BYTES = 100
_KEPT_BYTES = 1 << 12  # of a line that cannot be used, as an example

BytesPair = tuple[bytes, bytes]
Block = tuple[list[bytes], list[bytes]]


class UnusableLine(bytes):
    """The beginning of a line of training text that cannot be used, and the rule that drops it."""

    rule: str

    def __new__(cls, line: bytes, rule: str) -> "UnusableLine":
        """Keep the beginning of a line."""
        unusable = super().__new__(cls, line[:_KEPT_BYTES])
        unusable.rule = rule
        return unusable


def read_pairs(
    source_path: Path,
    target_path: Path,
    *,
    strict: bool,
    num_lines: int | None = None,
    parts: Sequence[str | None] = (None, None),
) -> Iterator[BytesPair]:
    """Read line pairs one by one, with the arguments of `read_blocks`."""
    blocks = read_blocks(source_path, target_path, strict=strict, num_lines=num_lines, parts=parts)
    for sources, targets in blocks:
        yield from zip(sources, targets, strict=True)


def read_blocks(
    source_path: Path,
    target_path: Path,
    *,
    strict: bool,
    num_lines: int | None = None,
    parts: Sequence[str | None] = (None, None),
) -> Iterator[Block]:
    """Read a parallel corpus, two files with translations line by line, in blocks of bounded size.

    If `strict`, a line that is not UTF-8 or too long is an error; otherwise, it is yielded, too
    long ones as an `UnusableLine`. `num_lines` is the expected number of lines, `parts` are those
    of `read_lines`.
    """
    paths = (source_path, target_path)
    readers = [_read_blocks(*each, strict=strict) for each in zip(paths, parts, strict=True)]
    sources: list[bytes] = []
    targets: list[bytes] = []
    num_pairs = 0
    while (sources := sources or next(readers[0], [])) and (
        targets := targets or next(readers[1], [])
    ):
        size = min(len(sources), len(targets))
        yield sources[:size], targets[:size]
        num_pairs += size
        sources, targets = sources[size:], targets[size:]
    num_source, num_target = (
        num_pairs + len(lines) + sum(map(len, reader))
        for lines, reader in zip((sources, targets), readers, strict=True)
    )
    if num_source != num_target:
        raise DataError(
            f"{source_path} has {num_source:,} lines, but {target_path} has {num_target:,}: "
            "line N of one must be the translation of line N of the other"
        )
    if num_lines not in (None, num_source):
        raise DataError(
            f"{source_path} and {target_path} have {num_source:,} lines, but should have "
            f"{num_lines:,}: they are truncated, or not the expected text"
        )


def read_lines(path: Path, *, strict: bool, part: str | None = None) -> Iterator[bytes]:
    r"""Read the lines of a text, which may be compressed, without line ends.

    Only "\n" ends a line, and carriage returns before it are removed. Other separators, such as
    U+2028, are text. A byte order mark at the start is dropped. `strict` is that of `read_blocks`.
    Text that users give is opened by its format, as `open_text` says of the `part`; other files are
    plain.
    """
    return chain.from_iterable(_read_blocks(path, part, strict=strict))


def in_chunks(pairs: Iterable[BytesPair]) -> Iterator[list[BytesPair]]:
    """Group pairs into lists that take a bounded amount of memory."""
    chunk: list[BytesPair] = []
    size = 0
    for pair in pairs:
        chunk.append(pair)
        size += len(pair[0]) + len(pair[1]) + _PAIR_OVERHEAD_BYTES
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_text(file: Any, path: Path | None, part: str | None = None) -> list[str]:
    """Read the lines of a text from a binary file, which is at `path` or standard input.

    A byte order mark is text, unlike in `read_lines`. The `part` is that of `open_text`.
    """
    blocks = _check_utf8(_plain_blocks(open_text(file, path, part), path), path)
    return [line.decode() for lines in blocks for line in lines]


def decode_lines(
    readline: Callable[[int], bytes], path: Path | None, *, keep_ends: bool = False
) -> Iterator[str]:
    """Decode the lines of a plain text as they arrive; lines end as in `read_lines`.

    A byte order mark is text, unlike in `read_lines`. `readline` reads the next line of the file at
    `path` or of standard input, or at most the given number of bytes. Line ends are removed unless
    `keep_ends`.
    """
    number = 0
    while line := readline(_MAX_LINE_BYTES):
        number += 1
        if len(line) == _MAX_LINE_BYTES:
            raise _too_long(path, number)
        yield _decode(line if keep_ends else line.rstrip(b"\r\n"), path, number)


def _read_blocks(path: Path, part: str | None, *, strict: bool) -> Iterator[list[bytes]]:
    """Read the lines of a text in blocks of at least one line."""
    if path.exists() and not path.is_file():  # reading a pipe might block, or never end
        mistake = "is a folder, not a file: check its name" if path.is_dir() else PIPE
        raise DataError(f"{path} {mistake}")
    try:
        with path.open("rb") as file:
            blocks = _plain_blocks(open_text(file, path, part), path, strict=strict)
            blocks = _without_mark(blocks)
            yield from _check_utf8(blocks, path) if strict else blocks
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain_os_error(error)}") from error


def _plain_blocks(
    file: TextFile, path: Path | None, *, strict: bool = True
) -> Iterator[list[bytes]]:
    """Split a plain text into lines, without a Python loop over lines; see `read_blocks`."""
    number, last = 1, b""
    while data := file.read(_BLOCK_BYTES):
        text = last + data
        lines = text.split(b"\n")
        if b"\r" in text:
            lines[:-1] = [line.rstrip(b"\r") for line in lines[:-1]]
        goes_on = isinstance(last, UnusableLine)
        if goes_on or max(map(len, lines)) >= _MAX_LINE_BYTES:
            is_long = [len(line) >= _MAX_LINE_BYTES for line in lines]
            is_long[0] |= goes_on
            if strict:
                raise _too_long(path, number + is_long.index(True))
            lines = [
                UnusableLine(line, "huge_line") if is_huge else line
                for line, is_huge in zip(lines, is_long, strict=True)
            ]
        last = lines.pop()
        if lines:
            number += len(lines)
            yield lines
    if last:
        yield [last if isinstance(last, UnusableLine) else last.rstrip(b"\r")]


def _without_mark(blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    for lines in blocks:
        if not isinstance(lines[0], UnusableLine):
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        yield lines
        yield from blocks


def _check_utf8(blocks: Iterable[list[bytes]], path: Path | None) -> Iterator[list[bytes]]:
    num_lines = 0
    for lines in blocks:
        try:
            b"\n".join(lines).decode()
        except UnicodeDecodeError:
            for number, line in enumerate(lines, num_lines + 1):
                _decode(line, path, number)  # raises, with the number of the line
        num_lines += len(lines)
        yield lines


def _too_long(path: Path | None, number: int) -> DataError:
    return DataError(
        f"{path or STANDARD_INPUT}, line {number:,} has {_MAX_LINE_BYTES >> 20} MiB or more: "
        "the text must have one sentence per line"
    )


def _decode(line: bytes, path: Path | None, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path or STANDARD_INPUT}, line {number:,} is not UTF-8 ({error.reason} at its byte "
            f"{error.start + 1}): {conversion(line, path)}"
        ) from error
