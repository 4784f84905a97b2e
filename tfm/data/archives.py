"""Unpacking of text from tar archives and compressed files, without trusting them.

Nothing is written but the members asked for, each to a path that the caller names; the names in an
archive are only compared. What expands beyond all reason is refused.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import math
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfm.errors import DataError
from tfm.reporting import Progress
from tfm.storage.files import atomic_write

_BLOCK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 18  # of one member, with all headers about it
_OPENERS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_NUM_NAMES_SHOWN = 5
# Text packs to a third or a fifth of its size; small files may well be very repetitive.
_MAX_EXPANSION = 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
# Damage may also pass for a request for more memory than there is.
_DAMAGES = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, MemoryError)


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
        for member, content in _members(packed, archive):
            name = member.name.removeprefix("./")
            if len(names) <= _NUM_NAMES_SHOWN:
                names.append(name)
            if name in outputs:
                if not member.isreg():
                    raise DataError(
                        f"{name} in {archive} is a link, a folder or a device, not a file: take "
                        "an archive that has the text itself"
                    )
                if name.endswith(".gz"):
                    content = _Unpacked(gzip.open, content, archive, packed_bytes=member.size)
                _write(content, outputs[name], origin=archive)
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
        content: Any = file
        if packed.suffix == ".gz":
            [magic] = (magic for magic, opener in _OPENERS.items() if opener is gzip.open)
            if file.read(len(magic)) != magic:
                raise DataError(
                    f"{packed} is not compressed by gzip: if it is plain text, rename it to "
                    f"{packed.stem}"
                )
            file.seek(0)
            content = _Unpacked(gzip.open, file, packed, packed_bytes=packed.stat().st_size)
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
    """The content of a compressed stream, as far as it expands within reason.

    Args:
        opener: Decompresses the stream.
        packed: The stream.
        origin: The file, for messages.
        packed_bytes: Size of the stream.
    """

    def __init__(
        self, opener: Callable[[Any], Any], packed: Any, origin: Path, *, packed_bytes: int
    ) -> None:
        self._content = opener(packed)
        self._origin = origin
        self._packed_bytes = packed_bytes
        self._num_bytes = 0

    def read(self, size: int, /) -> bytes:
        block: bytes = self._content.read(size)
        self._num_bytes += len(block)
        if self._num_bytes > max(_ALWAYS_ALLOWED_BYTES, _MAX_EXPANSION * self._packed_bytes):
            raise DataError(
                f"{self._origin} holds something that expands to more than {_MAX_EXPANSION} times "
                f"its packed size of {self._packed_bytes:,} bytes: this is no text"
            )
        return block


class _TarSource:
    """A tar archive for tarfile to read, whose end and whose headers' size are errors.

    Without them, tarfile takes headers of gigabytes into memory, and never ends where a header says
    that there is more to come.
    """

    def __init__(self, content: Any) -> None:
        self._content = content
        self.header_bytes_left: float = _MAX_HEADER_BYTES

    def read(self, size: int, /) -> bytes:
        if not self.header_bytes_left:
            raise tarfile.ReadError(f"a header has more than {_MAX_HEADER_BYTES:,} bytes")
        block: bytes = self._content.read(min(size, self.header_bytes_left))
        if not block:
            raise tarfile.ReadError("it ends too early")
        self.header_bytes_left -= len(block)
        return block


class _Member(tarfile.TarInfo):
    """A member whose header is sound: tarfile takes a damaged one for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Member":
        try:
            member = super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except (tarfile.HeaderError, ValueError, RecursionError) as error:
            raise tarfile.ReadError(str(error)) from error
        if member.size < 0 or member.issparse():
            raise tarfile.ReadError("it holds a file with holes, or of a negative size")
        return member


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
            f"{packed} is cut short or damaged ({error}): replace it by an intact copy; if tfm "
            "downloaded it, remove it to have it downloaded again"
        ) from error


def _members(packed: _MeteredFile, archive: Path) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    """The members of an archive, plain or compressed, and the content of those that have any."""
    start = packed.read(max(map(len, _OPENERS)))
    packed.seek(0)
    content: Any = packed
    for magic, opener in _OPENERS.items():
        if start.startswith(magic):
            content = _Unpacked(opener, packed, archive, packed_bytes=archive.stat().st_size)
    source: Any = _TarSource(content)
    with (
        _explained(archive),
        tarfile.open(
            fileobj=source,
            mode="r|",
            bufsize=_BLOCK_BYTES,
            tarinfo=_Member,
            encoding="utf-8",
            errors="replace",
        ) as tar,
    ):
        while (member := tar.next()) is not None:
            source.header_bytes_left = math.inf
            has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
            file = tar.extractfile(member) if has_content else None
            yield member, file
            while file is not None and file.read(_BLOCK_BYTES):
                pass  # what of it nobody has read
            source.header_bytes_left = _MAX_HEADER_BYTES
            # Else tarfile would take more and more memory.
            tar.members, tar.pax_headers = [], {}  # type: ignore[attr-defined]
        while content.read(_BLOCK_BYTES):
            pass  # to the end, where compressed files have their checksum


def _write(content: Any, output: Path, *, origin: Path) -> None:
    with atomic_write(output) as out:
        while block := _read(content, origin):
            out.write(block)


def _read(content: Any, origin: Path) -> bytes:
    with _explained(origin):
        block: bytes = content.read(_BLOCK_BYTES)
    return block


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
