"""Extract text from untrusted tar and zip archives and compressed files, in bounded memory.

Only requested members are written, each to a path that the caller chooses: names in an archive are
compared, but never become paths. Data that expands more than text can is refused.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import math
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfm.errors import DataError
from tfm.reporting import Progress
from tfm.storage.files import atomic_write

_BLOCK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 18  # all headers of a member together
_MAX_READ_BYTES = 1 << 22  # only the directory of a zip archive is read at once
_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGIC = b"PK"
_OPENERS: Mapping[bytes, Callable[[Any], Any]] = {
    _GZIP_MAGIC: gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_MAX_NAMES_SHOWN = 5
# Text compresses to between a third and a fifth of its size; small files may be very repetitive.
_MAX_EXPANSION = 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
# Damaged data may also make a decompressor ask for more memory than there is.
_DAMAGE_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, MemoryError)
_ZIP_DAMAGE_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error)


class _Member(NamedTuple):
    """A member of an archive; `content` is read before the next member is asked for."""

    name: str
    is_file: bool
    size: int
    content: Any


def extract_members(archive: Path, outputs: Mapping[str, Path]) -> None:
    """Extract members of a zip or tar archive, plain or compressed, to {member: path}.

    Members whose name ends in .gz are decompressed. If several members have one name, the last is
    extracted, as tar does. A tar archive is read to its end, because compressed files have their
    checksum there.

    Raises:
        DataError: A member is missing, not a regular file or too large for text, or the archive is
            truncated or damaged.
    """
    missing = set(outputs)
    names: list[str] = []
    with _open_with_progress(archive) as packed:
        is_zip = packed.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC or archive.suffix == ".zip"
        packed.seek(0)
        for member in (_zip_members if is_zip else _tar_members)(packed, archive):
            name, content = member.name.removeprefix("./"), member.content
            if len(names) <= _MAX_NAMES_SHOWN:
                names.append(name)
            if name in outputs:
                if not member.is_file:
                    raise DataError(
                        f"{name} in {archive} is a link, a folder or a device, not a file: use an "
                        "archive that holds the text itself"
                    )
                if name.endswith(".gz"):
                    content = _Decompressor(gzip.open, content, archive, packed_bytes=member.size)
                _write(content, outputs[name], origin=archive)
                missing.discard(name)
    if missing:
        shown = [name if name.isprintable() else repr(name) for name in names[:_MAX_NAMES_SHOWN]]
        more = ", …" if len(names) > _MAX_NAMES_SHOWN else ""
        raise DataError(
            f"{archive} has no member {' and no '.join(sorted(missing))}; it holds "
            f"{', '.join(shown) or 'nothing'}{more}: correct the member names or the archive in "
            "the recipe"
        )


def unpack_file(packed: Path, output: Path) -> None:
    """Copy a file, and decompress it if its name ends in .gz.

    Raises:
        DataError: The file is truncated, damaged or too large for text.
    """
    with _open_with_progress(packed) as file:
        content: Any = file
        if packed.suffix == ".gz":
            if file.read(len(_GZIP_MAGIC)) != _GZIP_MAGIC:
                raise DataError(
                    f"{packed} is not compressed by gzip: if it is plain text, rename it to "
                    f"{packed.stem}"
                )
            file.seek(0)
            content = _Decompressor(gzip.open, file, packed, packed_bytes=packed.stat().st_size)
        _write(content, output, origin=packed)


class _ProgressFile(io.FileIO):
    """A file that advances a progress bar as it is read, in blocks of bounded size."""

    def __init__(self, path: Path, bar: Progress) -> None:
        super().__init__(path)
        self._bar = bar

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = _MAX_READ_BYTES
        if size > _MAX_READ_BYTES:  # zipfile would read a directory of gigabytes into memory
            raise zipfile.BadZipFile(f"its directory has more than {_MAX_READ_BYTES:,} bytes")
        block = super().read(size)
        self._bar.update(len(block))
        return block


class _Decompressor:
    """The content of a compressed stream of `packed_bytes`, up to a limit on its expansion."""

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
                f"{self._origin} holds data that expands to more than {_MAX_EXPANSION} times its "
                f"compressed size of {self._packed_bytes:,} bytes, which text does not: check "
                "where the file comes from"
            )
        return block


class _TarStream:
    """A tar archive that raises at its end and when headers are too large.

    Without this, tarfile reads headers of gigabytes into memory, and loops forever if a header
    announces more data than the file has.
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


class _StrictTarInfo(tarfile.TarInfo):
    """Raise on a damaged header, which tarfile takes for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_StrictTarInfo":
        try:
            member = super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except (tarfile.HeaderError, ValueError, RecursionError) as error:
            raise tarfile.ReadError(str(error)) from error
        if member.size < 0 or member.issparse():
            raise tarfile.ReadError("it holds a sparse file, or a file of negative size")
        return member


@contextlib.contextmanager
def _open_with_progress(path: Path) -> Iterator[_ProgressFile]:
    bar = Progress(f"extract {path.name}", total=path.stat().st_size, unit="B")
    with bar, _ProgressFile(path, bar) as file:
        yield file


@contextlib.contextmanager
def _report_damage(packed: Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGE_ERRORS, *_ZIP_DAMAGE_ERRORS) as error:
        raise DataError(
            f"{packed} is truncated or damaged ({error}): replace it by an intact copy; if tfm "
            "downloaded it, remove it to have it downloaded again"
        ) from error


def _zip_members(packed: _ProgressFile, archive: Path) -> Iterator[_Member]:
    """Yield the members of a zip archive, each of which has a checksum."""
    archive_bytes = archive.stat().st_size
    with _report_damage(archive), zipfile.ZipFile(packed) as directory:
        for info in directory.infolist():
            if info.flag_bits & 1:
                raise zipfile.BadZipFile(f"{info.filename!r} is encrypted")
            kind = stat.S_IFMT(info.external_attr >> 16)
            is_file = not info.filename.endswith("/") and kind in (0, stat.S_IFREG)
            packed_bytes = min(info.compress_size, archive_bytes)
            content = _Decompressor(directory.open, info, archive, packed_bytes=packed_bytes)
            yield _Member(info.filename, is_file, info.file_size, content)


def _tar_members(packed: _ProgressFile, archive: Path) -> Iterator[_Member]:
    """Yield the members of a plain or compressed tar archive."""
    magic_bytes = packed.read(max(map(len, _OPENERS)))
    packed.seek(0)
    content: Any = packed
    for magic, opener in _OPENERS.items():
        if magic_bytes.startswith(magic):
            content = _Decompressor(opener, packed, archive, packed_bytes=archive.stat().st_size)
    stream: Any = _TarStream(content)
    with (
        _report_damage(archive),
        tarfile.open(
            fileobj=stream,
            mode="r|",
            bufsize=_BLOCK_BYTES,
            tarinfo=_StrictTarInfo,
            encoding="utf-8",
            errors="replace",
        ) as tar,
    ):
        while (member := tar.next()) is not None:
            stream.header_bytes_left = math.inf
            has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
            file = tar.extractfile(member) if has_content else None
            yield _Member(member.name, member.isreg(), member.size, file)
            while file is not None and file.read(_BLOCK_BYTES):
                pass  # skip what the caller has not read
            stream.header_bytes_left = _MAX_HEADER_BYTES
            # tarfile would keep all members and headers in memory.
            tar.members, tar.pax_headers = [], {}  # type: ignore[attr-defined]
        while content.read(_BLOCK_BYTES):
            pass  # read to the end, where compressed files have their checksum


def _write(content: Any, output: Path, *, origin: Path) -> None:
    with atomic_write(output) as file:
        while True:
            with _report_damage(origin):  # errors of writing are not damage
                block: bytes = content.read(_BLOCK_BYTES)
            if not block:
                return
            file.write(block)
