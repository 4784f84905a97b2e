"""Reading of tar archives in one pass and in bounded memory, whatever they claim of themselves.

Only what an archive of text needs is understood: names and contents. Python's tarfile does more for
archives that can be trusted: it takes names of gigabytes and lists of a billion holes into memory,
follows headers about headers until its stack ends, and before its newest versions goes round in
circles where a size is negative.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

_BLOCK_BYTES = 512
_SKIP_BYTES = 1 << 18
_MAX_EXTENSION_BYTES = 1 << 16  # of a header that holds a long name
_OCTAL = re.compile(rb"[0-7]+")
_PAX_LENGTH = re.compile(rb"([0-9]{1,5}) ")
_FILES = (b"0", b"\0", b"7")
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_SPARSE = b"S"
_LONG_NAME, _LONG_LINK, _PAX, _OLD_PAX, _GLOBAL_PAX = b"L", b"K", b"x", b"X", b"g"


class TarDamageError(Exception):
    """An archive that is cut short or damaged, or holds what no archive of text does."""


class Readable(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes; fewer only at the end."""


class MemberContent:
    """The content of a member, and nothing of what comes behind it."""

    def __init__(self, archive: Readable, size: int) -> None:
        self._archive = archive
        self._left = size

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many.

        Raises:
            TarDamageError: The archive ends before the content does.
        """
        block = _exactly(self._archive, min(size, self._left))
        self._left -= len(block)
        return block


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of an archive.

    Attributes:
        name: Its name, as the archive spells it; of a folder without the slash at the end.
        size: Bytes of its content.
        is_file: Whether it is a regular file.
        content: To read, if at all, before the next member is asked for.
    """

    name: str
    size: int
    is_file: bool
    content: MemberContent


@dataclass(frozen=True, kw_only=True)
class _Header:
    name: str
    size: int
    kind: bytes


def read_members(archive: Readable) -> Iterator[Member]:
    """Read an archive to its end.

    Args:
        archive: The archive, not compressed.

    Raises:
        TarDamageError: It is damaged, cut short, or asks for more than text needs.
    """
    about_the_next: dict[str, Any] = {}
    while (header := _read_header(archive)) is not None:
        if header.kind in (_LONG_NAME, _LONG_LINK, _PAX, _OLD_PAX, _GLOBAL_PAX):
            about_the_next |= _extension(archive, header)
            continue
        header, about_the_next = replace(header, **about_the_next), {}
        size = 0 if header.kind in _WITHOUT_CONTENT else header.size
        content = MemberContent(archive, size)
        yield Member(
            name=header.name.rstrip("/"),
            size=size,
            is_file=header.kind in _FILES and not header.name.endswith("/"),
            content=content,
        )
        _skip(content)
        _skip_padding(archive, size)
    while archive.read(_SKIP_BYTES):
        pass  # to the end, where compressed files have their checksum


def _read_header(archive: Readable) -> _Header | None:
    """The next header; None for the block of zeros at the end."""
    block = _exactly(archive, _BLOCK_BYTES)
    if not any(block):
        return None
    # The checksum counts as spaces in itself.
    if _number(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * ord(" "):
        raise TarDamageError("a header has the wrong checksum")
    kind = block[156:157]
    if kind == _SPARSE:
        raise TarDamageError("it holds a file with holes")
    name = _text(block[:100])
    # GNU's own kind of header keeps times where others have the start of long names.
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    return _Header(name=name, size=_number(block[124:136]), kind=kind)


def _number(field: bytes) -> int:
    """A number in octal digits or, if it is large, in bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b"\0 ")
    if digits and not _OCTAL.fullmatch(digits):
        raise TarDamageError("a header has something else for a number")
    return int(digits or b"0", 8)


def _extension(archive: Readable, header: _Header) -> dict[str, Any]:
    """What a header says about the next one, by the names that _Header has for it."""
    if header.size > _MAX_EXTENSION_BYTES:
        raise TarDamageError(f"a header holds a name of {header.size:,} bytes")
    content = _exactly(archive, header.size)
    _skip_padding(archive, header.size)
    if header.kind == _LONG_NAME:
        return {"name": _text(content)}
    if header.kind not in (_PAX, _OLD_PAX):
        return {}
    records = _pax_records(content)
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise TarDamageError("it holds a file with holes")
    said: dict[str, Any] = {}
    if b"path" in records:
        said["name"] = _text(records[b"path"])
    if b"size" in records:
        if not records[b"size"].isdigit():
            raise TarDamageError("a header has something else for a number")
        said["size"] = int(records[b"size"][:20])
    return said


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Records such as "17 path=a/b.txt" and a line end, which start with their own length."""
    records = {}
    start = 0
    while start < len(content) and (length := _PAX_LENGTH.match(content, start)):
        end = start + int(length[1])
        key, equals, value = content[length.end() : end].partition(b"=")
        if not equals or not value.endswith(b"\n") or end > len(content):
            break
        records[key] = value[:-1]
        start = end
    if content[start:].strip(b"\0"):
        raise TarDamageError("a header is not of the form that it should have")
    return records


def _exactly(archive: Readable, size: int) -> bytes:
    block = archive.read(size) if size else b""
    if len(block) < size:
        raise TarDamageError("it ends too early")
    return block


def _skip(content: MemberContent) -> None:
    while content.read(_SKIP_BYTES):
        pass


def _skip_padding(archive: Readable, size: int) -> None:
    """Members end where a block does."""
    _exactly(archive, -size % _BLOCK_BYTES)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")
