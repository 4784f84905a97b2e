"""Extract text from tar and zip archives and compressed files, in bounded memory.

Only requested members are written, each to a path that the caller chooses: names in an archive are
compared, but never become paths. Data that expands more than text can is refused.
"""

import contextlib
import errno
import gzip
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

from tfm.disk.files import atomic_write
from tfm.errors import DataError
from tfm.reporting import Progress
from tfm.text.files import check_expansion, damage_errors, open_packed

_BLOCK_BYTES = 1 << 20
_START_BYTES = 16  # which tell how a file is compressed
_MAX_NAMES_SHOWN = 5
_ENCRYPTED = 1  # flag of a zip member
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    *(tarfile.TarError, zipfile.BadZipFile),
    # An encrypted member; a header that is cut off, or has an impossible value.
    *(RuntimeError, struct.error, ValueError),
)

# A member of an archive: its name, and a function that opens it; None if it is no regular file.
Member = tuple[str, Callable[[], Any] | None]


def extract_members(
    archive: Path, outputs: Mapping[str, Path], named: Callable[[str], str] = str
) -> None:
    """Extract members of a zip or tar archive, plain or compressed, to {member: path}.

    `named` returns the name in `outputs` by which a member is known.
    Members whose name ends in .gz are decompressed. If several members have one name, the last is
    extracted, as tar does. Other members of a zip archive are not read, and may be damaged. A tar
    archive is read to its end, because compressed files have their checksum there.
    """
    names = extract_found(archive, outputs, named)
    if missing := outputs.keys() - set(names):
        shown = [name if name.isprintable() else repr(name) for name in names[:_MAX_NAMES_SHOWN]]
        more = ", …" if len(names) > _MAX_NAMES_SHOWN else ""
        raise DataError(
            f"{archive} has no member {' and no '.join(sorted(missing))}; it holds "
            f"{', '.join(shown) or 'nothing'}{more}: correct the member names or the archive in "
            "the recipe"
        )


def extract_found(
    archive: Path, outputs: Mapping[str, Path], named: Callable[[str], str] = str
) -> list[str]:
    """Extract the members that an archive has, as `extract_members`; return all names in it."""
    names: list[str] = []
    with _open(archive) as packed:
        # A plain tar archive may end with a member that is a zip archive.
        is_zip = packed.read(512)[257:262] != b"ustar" and zipfile.is_zipfile(packed)
        packed.seek(0)
        members = _zip_members(packed, archive) if is_zip else _tar_members(packed, archive)
        for full_name, open_member in members:
            names.append(name := named(full_name))
            if name not in outputs:
                continue
            if open_member is None:
                raise DataError(
                    f"{name} in {archive} is a link, a folder or a device, not a file: use an "
                    "archive that holds the text itself"
                )
            content = open_member()
            unpacked = gzip.GzipFile(fileobj=content) if name.endswith(".gz") else content
            _write(unpacked, outputs[name], archive=archive)
    return names


def extract_files(archive: Path, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    """Extract files of a zip archive to a folder, each under its name without the folders in it."""
    with _open(archive) as packed:
        infos: dict[str, zipfile.ZipInfo] = {}
        directory = zipfile.ZipFile(packed)
        for info in directory.infolist():
            name = PureWindowsPath(info.filename).name  # "/" and "\\" separate folders
            if not _is_file(info) or not is_wanted(name) or name.startswith("._"):  # of macOS
                continue
            if name in infos:
                raise DataError(
                    f"{archive} has several files {name}: unpack it, and name one of its folders"
                )
            infos[name] = info
        num_bytes = sum(info.file_size for info in infos.values())
        check_expansion(archive, archive.stat().st_size, num_bytes)
        for name, info in infos.items():
            _write(_open_zip_member(directory, info, archive), folder / name, archive=archive)


def unpack_file(packed: Path, output: Path) -> None:
    """Copy a file, and decompress it if it is compressed."""
    with _open(packed) as file:
        _write(_decompressed(file), output, archive=packed)


class _ProgressFile(io.FileIO):
    """A file that advances a progress bar as it is read."""

    def __init__(self, path: Path, bar: Progress) -> None:
        super().__init__(path)
        self._bar = bar

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        self._bar.update(len(block))
        return block


class _TarStream:
    """The content of a tar archive; an error at its end, where tarfile may read on forever."""

    def __init__(self, content: Any, archive: Path) -> None:
        self._content = content
        self._archive = archive
        self._num_bytes = 0

    def read(self, size: int, /) -> bytes:
        block: bytes = self._content.read(size)
        if not block:
            raise tarfile.ReadError("it ends too early")
        self._num_bytes += len(block)
        check_expansion(self._archive, self._archive.stat().st_size, self._num_bytes)
        return block


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.FileIO]:
    """Open an archive or a packed file; DataError if its content proves damaged."""
    bar = Progress(f"extract {path.name}", total=path.stat().st_size, unit="B")
    try:
        with bar, _ProgressFile(path, bar) as file:
            yield file
    except _DAMAGE_ERRORS + damage_errors() as error:
        # Decompressors give no number, and a seek to an impossible place EINVAL.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise DataError(
            f"{path} is truncated or damaged ({error}): replace it by an intact copy; if tfm "
            "downloaded it, remove it to have it downloaded again"
        ) from error


def _zip_members(packed: io.FileIO, archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(packed) as directory:
        for info in directory.infolist():
            open_ = partial(_open_zip_member, directory, info, archive)
            yield info.filename, open_ if _is_file(info) else None


def _is_file(info: zipfile.ZipInfo) -> bool:
    """Return whether a member of a zip archive is a regular file."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    # Not `is_dir`, which fails if a damaged name is empty.
    return not info.filename.endswith("/") and kind in (0, stat.S_IFREG)


def _open_zip_member(directory: zipfile.ZipFile, info: zipfile.ZipInfo, archive: Path) -> Any:
    if info.flag_bits & _ENCRYPTED:
        raise DataError(
            f"{info.filename} in {archive} is encrypted: use an archive without a password"
        )
    return directory.open(info)


def _tar_members(packed: io.FileIO, archive: Path) -> Iterator[Member]:
    content = _decompressed(packed)  # tarfile's own would not compare checksums
    stream: Any = _TarStream(content, archive)
    with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="replace") as tar:
        for member in tar:
            open_member = partial(tar.extractfile, member) if member.isreg() else None
            yield member.name.removeprefix("./"), open_member
    while content.read(_BLOCK_BYTES):
        pass


def _decompressed(packed: io.FileIO) -> Any:
    start = packed.read(_START_BYTES)
    packed.seek(0)
    return open_packed(packed, start) or packed


def _write(content: Any, output: Path, *, archive: Path) -> None:
    """Copy the content of a member, up to a limit on its expansion."""
    num_bytes = 0
    with atomic_write(output) as file:
        while block := content.read(_BLOCK_BYTES):
            num_bytes += file.write(block)
            check_expansion(archive, archive.stat().st_size, num_bytes)
