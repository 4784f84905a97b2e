"""Unpacking of text from tar archives and gzip files, without trusting them.

Nothing is written but the members asked for, each to a path that the caller names; the names in an
archive are only compared. What expands beyond all reason is refused.
"""

import contextlib
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from tfm.errors import DataError
from tfm.runtime.files import atomic_write
from tfm.runtime.reporting import Progress

_BLOCK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_NUM_NAMES_SHOWN = 5
# Text packs to a third or a fifth of its size; small files may well be very repetitive.
_MAX_EXPANSION = 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
_DAMAGES = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


def extract_members(archive: Path, outputs: Mapping[str, Path]) -> None:
    """Stream members of a tar archive, plain or compressed, to files in one pass.

    Members whose name ends in .gz are decompressed on the way.

    Args:
        archive: The archive.
        outputs: {name of a member: where to write it}.

    Raises:
        DataError: A member is missing, not a regular file or too big to be text, or the archive is
            cut short or damaged.
    """
    missing = dict(outputs)
    names: list[str] = []
    with _explained(archive), _metered(archive) as packed, _open_tar(packed) as tar:
        while missing and (member := tar.next()):
            # tarfile remembers every member, and a hostile archive has many.
            tar.members.clear()  # type: ignore[attr-defined]
            name = member.name.removeprefix("./")
            if len(names) <= _NUM_NAMES_SHOWN:
                names.append(name)
            if name in missing:
                _extract(tar, member, missing.pop(name), archive)
    if missing:
        held = ", ".join(names[:_NUM_NAMES_SHOWN]) or "nothing"
        more = ", …" if len(names) > _NUM_NAMES_SHOWN else ""
        raise DataError(
            f"{archive} has no member {' and no '.join(missing)}: it is another archive, or cut "
            f"short; it holds {held}{more}"
        )


def unpack_file(packed: Path, output: Path) -> None:
    """Stream a file to another one; decompress it if its name ends in .gz.

    Raises:
        DataError: It is cut short or damaged, or too big to be text.
    """
    is_gzip, size = packed.suffix == ".gz", packed.stat().st_size
    with _explained(packed), _metered(packed) as file:
        _write(file, output, is_gzip=is_gzip, packed_bytes=size, origin=packed)


class _MeteredFile(io.FileIO):
    """A file that moves a bar as it is read."""

    def __init__(self, path: Path, bar: Progress) -> None:
        super().__init__(path)
        self._bar = bar

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._bar.update(len(block))
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


def _open_tar(packed: _MeteredFile) -> tarfile.TarFile:
    is_gzip = packed.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    packed.seek(0)
    # tarfile would read gzip too, but the module of its own notices wrong sums and lengths.
    if is_gzip:
        return tarfile.open(fileobj=gzip.open(packed), mode="r|", bufsize=_BLOCK_BYTES)
    return tarfile.open(fileobj=packed, mode="r|*", bufsize=_BLOCK_BYTES)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, output: Path, archive: Path) -> None:
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise DataError(
            f"{member.name} in {archive} is a link, a folder or a device, not a file: take an "
            "archive that has the text itself"
        )
    is_gzip = member.name.endswith(".gz")
    packed_bytes = member.size if is_gzip else archive.stat().st_size
    with content:
        _write(content, output, is_gzip=is_gzip, packed_bytes=packed_bytes, origin=archive)


def _write(
    content: IO[bytes], output: Path, *, is_gzip: bool, packed_bytes: int, origin: Path
) -> None:
    limit = max(_ALWAYS_ALLOWED_BYTES, _MAX_EXPANSION * packed_bytes)
    num_bytes = 0
    with atomic_write(output) as out, contextlib.ExitStack() as stack:
        text = stack.enter_context(gzip.open(content)) if is_gzip else content
        while block := text.read(_BLOCK_BYTES):
            num_bytes += len(block)
            if num_bytes > limit:
                raise DataError(
                    f"{origin} holds something that expands to more than {_MAX_EXPANSION} times "
                    f"its packed size of {packed_bytes:,} bytes: this is no text"
                )
            out.write(block)
