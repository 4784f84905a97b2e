"""Unpacking of text from tar archives and compressed files, without trusting them.

Nothing is written but the members asked for, each to a path that the caller names; the names in an
archive are only compared. What expands beyond all reason is refused.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfm.data.tar import Member, Readable, TarDamageError, read_members
from tfm.errors import DataError
from tfm.reporting import Progress
from tfm.storage.files import atomic_write

_BLOCK_BYTES = 1 << 20
_OPENERS: Mapping[bytes, Callable[[Any], Readable]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_NUM_NAMES_SHOWN = 5
# Text packs to a third or a fifth of its size; small files may well be very repetitive.
_MAX_EXPANSION = 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
# Damage may also pass for a request for more memory than there is.
_DAMAGES = (TarDamageError, EOFError, OSError, zlib.error, lzma.LZMAError, MemoryError)


def extract_members(archive: Path, outputs: Mapping[str, Path]) -> None:
    """Stream members of a tar archive, plain or compressed, to files in one pass.

    Members whose name ends in .gz are decompressed on the way. Of several members of one name, the
    last counts, as it does for tar. The archive is read to its end, where compression has its
    checksum.

    Args:
        archive: The archive.
        outputs: {name of a member: where to write it}.

    Raises:
        DataError: A member is missing, not a regular file or too big to be text, or the archive is
            cut short or damaged.
    """
    missing = set(outputs)
    names: list[str] = []
    with _metered(archive) as packed:
        for member in _members(packed, archive):
            name = member.name.removeprefix("./")
            if len(names) <= _NUM_NAMES_SHOWN:
                names.append(name)
            if name in outputs:
                _extract(member, outputs[name], archive)
                missing.discard(name)
    if missing:
        held = ", ".join(map(_shown, names[:_NUM_NAMES_SHOWN])) or "nothing"
        more = ", …" if len(names) > _NUM_NAMES_SHOWN else ""
        raise DataError(
            f"{archive} has no member {' and no '.join(sorted(missing))}: it is another archive; "
            f"it holds {held}{more}"
        )


def unpack_file(packed: Path, output: Path) -> None:
    """Stream a file to another one; decompress it if its name ends in .gz.

    Raises:
        DataError: It is cut short or damaged, or too big to be text.
    """
    with _metered(packed) as file:
        content: Readable = file
        if packed.suffix == ".gz":
            size = packed.stat().st_size
            content = _Unpacked(file, gzip.open, origin=packed, packed_bytes=size)
        _write(content, output, origin=packed)


class _MeteredFile(io.FileIO):
    """A file that moves a bar as it is read."""

    def __init__(self, path: Path, bar: Progress) -> None:
        super().__init__(path)
        self._bar = bar

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._bar.update(len(block))
        return block


class _Unpacked:
    """What a compressed stream holds.

    Args:
        packed: The stream.
        opener: Decompresses it.
        origin: The file, for messages.
        packed_bytes: Size of the stream, which says how much is too much.
    """

    def __init__(
        self, packed: Any, opener: Callable[[Any], Readable], *, origin: Path, packed_bytes: int
    ) -> None:
        self._stream = opener(packed)
        self._origin = origin
        self._packed_bytes = packed_bytes
        self._num_bytes = 0

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many.

        Raises:
            DataError: The stream is damaged, or expands beyond all reason.
        """
        with _explained(self._origin):
            block = self._stream.read(size)
        self._num_bytes += len(block)
        if self._num_bytes > max(_ALWAYS_ALLOWED_BYTES, _MAX_EXPANSION * self._packed_bytes):
            raise DataError(
                f"{self._origin} holds something that expands to more than {_MAX_EXPANSION} times "
                f"its packed size of {self._packed_bytes:,} bytes: this is no text"
            )
        return block


@contextlib.contextmanager
def _metered(path: Path) -> Iterator[_MeteredFile]:
    size = path.stat().st_size
    with (
        Progress(f"extract {path.name}", total=size, unit="B") as bar,
        _MeteredFile(path, bar) as f,
    ):
        yield f


@contextlib.contextmanager
def _explained(packed: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise DataError(
            f"{packed} is cut short or damaged ({error}): delete it and fetch it again"
        ) from error


def _members(packed: _MeteredFile, archive: Path) -> Iterator[Member]:
    """The members of an archive, plain or compressed."""
    start = packed.read(max(map(len, _OPENERS)))
    packed.seek(0)
    content: Readable = packed
    for magic, opener in _OPENERS.items():
        if start.startswith(magic):
            size = archive.stat().st_size
            content = _Unpacked(packed, opener, origin=archive, packed_bytes=size)
    with _explained(archive):
        yield from read_members(content)


def _extract(member: Member, output: Path, archive: Path) -> None:
    if not member.is_file:
        raise DataError(
            f"{member.name} in {archive} is a link, a folder or a device, not a file: take an "
            "archive that has the text itself"
        )
    content: Readable = member.content
    if member.name.endswith(".gz"):
        content = _Unpacked(content, gzip.open, origin=archive, packed_bytes=member.size)
    _write(content, output, origin=archive)


def _write(content: Readable, output: Path, *, origin: Path) -> None:
    with atomic_write(output) as out:
        while block := _read(content, origin):
            out.write(block)


def _read(content: Readable, origin: Path) -> bytes:
    with _explained(origin):
        return content.read(_BLOCK_BYTES)


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
