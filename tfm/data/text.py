"""Reading of plain and SGML text, line by line."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO

from tfm.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_LINE_BYTES = 1 << 24
_MAX_SEGMENT_BYTES = 1 << 20
_SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
_SEGMENT_START = re.compile(rb"<seg\b", re.IGNORECASE)
_ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));")
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_INNER_LINE_END = re.compile(rb"\s*[\r\n]\s*")


def read_pairs(
    source_path: Path, target_path: Path, *, strict: bool, num_lines: int | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Read two files that are line by line translations of each other.

    Args:
        source_path: The source side.
        target_path: The target side.
        strict: Stop at a line that is not UTF-8; else hand it on.
        num_lines: How many lines there must be, if that is known.

    Raises:
        DataError: The sides do not have the same number of lines, or a file is damaged.
    """
    num_source = num_target = 0
    sides = (read_lines(path, strict=strict) for path in (source_path, target_path))
    for source, target in zip_longest(*sides):
        num_source += source is not None
        num_target += target is not None
        if source is not None and target is not None:
            yield source, target
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


def read_lines(path: Path, *, strict: bool) -> Iterator[bytes]:
    r"""Read the lines of a plain or SGML (.sgm) text without their ends.

    Only "\n" ends a line, and carriage returns before it belong to the end; U+2028 and its like are
    text. A byte order mark at the start of the file is dropped. Of SGML, each <seg> is a line.

    Args:
        path: The file.
        strict: Stop at a line that is not UTF-8; else hand it on.

    Raises:
        DataError: A line is too long to be one, or SGML is damaged.
    """
    with path.open("rb") as file:
        if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
            file.seek(0)
        lines = _plain_lines(file, path)
        if path.suffix in (".sgm", ".sgml"):
            lines = _segments(lines, path)
        yield from _utf8(lines, path) if strict else lines


def _plain_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        if len(line) == _MAX_LINE_BYTES:
            raise DataError(
                f"{path}, line {number:,} has {_MAX_LINE_BYTES >> 20} MiB or more: "
                "this is no text of one sentence a line"
            )
        yield line.rstrip(b"\r\n")


def _utf8(lines: Iterator[bytes], path: Path) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number:,} is not UTF-8 ({error.reason} at its byte "
                f"{error.start + 1}): convert the file to UTF-8"
            ) from error
        yield line


def _segments(lines: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The content of the <seg> elements, which may span lines."""
    pending = b""
    for line in lines:
        pending += line + b"\n"
        end = 0
        for match in _SEGMENT.finditer(pending):
            if _SEGMENT_START.search(match[1]):
                raise _unclosed(path, match[0])
            yield _segment_text(match[1])
            end = match.end()
        pending = pending[end:]
        if not _SEGMENT_START.search(pending):
            pending = b""
        elif len(pending) > _MAX_SEGMENT_BYTES:
            break
    if pending:
        raise _unclosed(path, pending)


def _unclosed(path: Path, segment: bytes) -> DataError:
    start = segment[:40].decode(errors="replace")
    return DataError(
        f"{path} is cut short or damaged: the element that starts {start!r} has no </seg>"
    )


def _segment_text(content: bytes) -> bytes:
    return _INNER_LINE_END.sub(b" ", _ENTITY.sub(_unescaped, content)).strip()


def _unescaped(match: re.Match[bytes]) -> bytes:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _ENTITIES[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    is_character = 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code).encode() if is_character else match[0]
