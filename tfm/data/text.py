"""Reading of plain and SGML text, line by line."""

import contextlib
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from tfm.data.encoding import BYTE_ORDER_MARKS, iconv_command
from tfm.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_LINE_BYTES = 1 << 24
_MAX_SEGMENT_BYTES = 1 << 20
_NUM_BYTES_SHOWN = 40
_CHUNK_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 19  # much more would leave the processor's caches
_PAIR_OVERHEAD_BYTES = 100
# No pattern here may look at a character more than a few times, or a file could be made that is
# never read to its end.
_TAG = re.compile(rb"<(/?)seg\b[^<>]*(>?)", re.IGNORECASE)
_ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));")
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_LINE_ENDS = re.compile(rb"[\r\n]+")

BytesPair = tuple[bytes, bytes]
Block = tuple[list[bytes], list[bytes]]


def read_pairs(
    source_path: Path, target_path: Path, *, strict: bool, num_lines: int | None = None
) -> Iterator[BytesPair]:
    """Read the pairs of `read_blocks` one by one."""
    for sources, targets in read_blocks(
        source_path, target_path, strict=strict, num_lines=num_lines
    ):
        yield from zip(sources, targets, strict=True)


def read_blocks(
    source_path: Path, target_path: Path, *, strict: bool, num_lines: int | None = None
) -> Iterator[Block]:
    """Read two files that are line by line translations of each other, in blocks of bounded memory.

    Args:
        source_path: The source side.
        target_path: The target side.
        strict: Stop at a line that is not UTF-8; else hand it on.
        num_lines: How many lines there must be, if that is known.

    Raises:
        DataError: The sides do not have the same number of lines, or a file is damaged.
    """
    readers = [_blocks(path, strict=strict) for path in (source_path, target_path)]
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
        num_pairs + len(rest) + sum(map(len, reader))
        for rest, reader in zip((sources, targets), readers, strict=True)
    )
    if num_source != num_target:
        raise DataError(
            f"{source_path} has {num_source:,} lines, but {target_path} has {num_target:,}: "
            "line N of one must be the translation of line N of the other"
        )
    if num_lines not in (None, num_source):
        raise DataError(
            f"{source_path} and {target_path} have {num_source:,} lines, but should have "
            f"{num_lines:,}: they are other text, or cut short"
        )


def read_columns(path: Path, *, strict: bool, num_lines: int | None = None) -> Iterator[BytesPair]:
    """Read a file of two columns, source and target, that a tab separates.

    Args:
        path: The file.
        strict: Stop at a line that is not UTF-8; else hand it on.
        num_lines: The number of lines that there must be, if that is known.

    Raises:
        DataError: A line has fewer or more columns, the file has another number of lines, or it is
            damaged.
    """
    number = 0
    for number, line in enumerate(read_lines(path, strict=strict), 1):
        columns = line.split(b"\t")
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number:,} has {len(columns)} columns separated by tabs, but needs "
                "two: source and target"
            )
        yield columns[0], columns[1]
    if num_lines not in (None, number):
        raise DataError(
            f"{path} has {number:,} lines, but should have {num_lines:,}: it is other text, or cut "
            "short"
        )


def read_lines(path: Path, *, strict: bool) -> Iterator[bytes]:
    r"""Read the lines of a plain or SGML (.sgm) text without their ends.

    Only "\n" ends a line, and carriage returns before it belong to the end; U+2028 and its like are
    text. A byte order mark at the start of the file is dropped. Of SGML, each <seg> is a line.

    Args:
        path: The file.
        strict: Stop at a line that is not UTF-8; else hand it on.

    Raises:
        DataError: A line is too long to be one, SGML is damaged, or the path is no readable file.
    """
    return chain.from_iterable(_blocks(path, strict=strict))


def in_chunks(pairs: Iterable[BytesPair]) -> Iterator[list[BytesPair]]:
    """Group pairs into lists of bounded memory, however long or short their lines are."""
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


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, and nothing that might never end or never begin, as a pipe does.

    Raises:
        DataError: It is something else, or cannot be read, now or later.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder, a pipe or a device, not a file: check its name")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def decoded_lines(readline: Callable[[int], bytes], name: str) -> Iterator[str]:
    """Decode the lines of a plain text as they arrive, with the line ends of `read_lines`.

    Args:
        readline: Reads the next line, or at most as many bytes of it as asked for.
        name: What messages call the text.

    Raises:
        DataError: A line is too long to be one, or not UTF-8.
    """
    number = 0
    while line := readline(_MAX_LINE_BYTES):
        number += 1
        if len(line) == _MAX_LINE_BYTES:
            raise _too_long(name, number)
        text = _decoded(line.rstrip(b"\r\n"), name, number)
        yield text.removeprefix("\ufeff" if number == 1 else "")


def _blocks(path: Path, *, strict: bool) -> Iterator[list[bytes]]:
    """The lines of a plain or SGML text, many at a time, never none."""
    with _opened(path) as file:
        start = file.read(4)
        for mark, encoding in BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                raise DataError(
                    f"{path} is {encoding}, not UTF-8: convert it with "
                    f"{iconv_command(path, encoding)}"
                )
        file.seek(len(_BYTE_ORDER_MARK) if start.startswith(_BYTE_ORDER_MARK) else 0)
        blocks = _plain_blocks(file, str(path))
        if path.suffix in (".sgm", ".sgml"):
            blocks = ([segment] for segment in _segments(file, path))
        yield from _utf8_blocks(blocks, str(path)) if strict else blocks


def _plain_blocks(file: IO[bytes], name: str) -> Iterator[list[bytes]]:
    """The lines of a plain text, read without any Python for each."""
    number, rest = 1, b""
    while data := file.read(_BLOCK_BYTES):
        text = rest + data
        lines = text.split(b"\n")
        if max(map(len, lines)) >= _MAX_LINE_BYTES:
            is_long = [len(line) >= _MAX_LINE_BYTES for line in lines]
            raise _too_long(name, number + is_long.index(True))
        rest = lines.pop()
        if lines:
            number += len(lines)
            yield [line.rstrip(b"\r") for line in lines] if b"\r" in text else lines
    if rest:
        yield [rest.rstrip(b"\r")]


def _utf8_blocks(blocks: Iterable[list[bytes]], name: str) -> Iterator[list[bytes]]:
    num_lines = 0
    for lines in blocks:
        try:
            b"\n".join(lines).decode()
        except UnicodeDecodeError:
            for number, line in enumerate(lines, num_lines + 1):
                _decoded(line, name, number)  # raises what says which line it is
        num_lines += len(lines)
        yield lines


def _too_long(name: str, number: int) -> DataError:
    return DataError(
        f"{name}, line {number:,} has {_MAX_LINE_BYTES >> 20} MiB or more: "
        "this is no text of one sentence a line"
    )


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number:,} is not UTF-8 ({error.reason} at its byte "
            f"{error.start + 1}): convert it to UTF-8"
        ) from error


def _segments(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The content of the <seg> elements, which may span lines; memory holds one at a time."""
    if not os.fstat(file.fileno()).st_size:
        return  # which cannot be mapped
    text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = None  # of the content of the element that is open
    for tag in _TAG.finditer(text):
        closes, bracket = tag.groups()
        end = tag.start()
        if not bracket:
            raise _unclosed(path, text[end : end + _NUM_BYTES_SHOWN])
        if start is not None and (not closes or end - start > _MAX_SEGMENT_BYTES):
            raise _unclosed(path, text[start : start + _NUM_BYTES_SHOWN])
        if closes and start is not None:
            yield _segment_text(text[start:end])
        start = None if closes else tag.end()
    if start is not None:
        raise _unclosed(path, text[start : start + _NUM_BYTES_SHOWN])


def _unclosed(path: Path, content: bytes) -> DataError:
    return DataError(
        f"{path} is cut short or damaged: the element that starts "
        f"{content.decode(errors='replace')!r} has no </seg>"
    )


def _segment_text(content: bytes) -> bytes:
    lines = _LINE_ENDS.split(_ENTITY.sub(_unescaped, content))
    return b" ".join(filter(None, (line.strip() for line in lines)))


def _unescaped(match: re.Match[bytes]) -> bytes:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _ENTITIES[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    is_character = 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code).encode() if is_character else match[0]
