"""Files that are whole or absent: written aside, flushed to disk, then renamed."""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tfm.errors import DataError

_HASH_BLOCK_BYTES = 1 << 20
_MAX_JSON_BYTES = 1 << 26  # ours are a thousand times smaller
_PARTIAL = re.compile(r"\.(.+)\.([0-9]+)\.partial")
# What a file system says that cannot do what it is asked for, rather than fails at it.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV)
_WORKING_DIRECTORY = -100  # AT_FDCWD of Linux
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` only once the block has ended well."""
    make_directory(path.parent)
    remove_leftovers(path.parent, of=path.name)
    partial = _aside(path)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write does not say where
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Fill a folder, with files only, that replaces `path` only once the block has ended well.

    At every moment, either the older folder or the new one is there.
    """
    make_directory(path.parent)
    remove_leftovers(path.parent, of=path.name)
    settle_directory(path)
    partial = _aside(path)
    remove_directory(partial)
    partial.mkdir()
    try:
        yield partial
        for path_inside in partial.iterdir():
            with path_inside.open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(partial)
        if path.is_dir() or path.is_symlink():
            _replace_directory(path, by=partial)
        else:
            os.replace(partial, path)
        sync_directory(path.parent)  # before the older folder goes: it may come back in a power cut
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            remove_directory(partial)


def make_directory(path: Path) -> None:
    """Make a folder and those above it, so that they survive a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def remove_directory(path: Path) -> None:
    """Remove a folder with all that is in it, or a link to one; it need not be there."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def standing_directory(path: Path) -> Path:
    """The folder, or its predecessor if a process was killed between moving it away and the new in.

    That can only happen on file systems that cannot exchange two folders atomically.
    """
    outgoing = _outgoing(path)
    return outgoing if outgoing.is_dir() and not path.exists() else path


def settle_directory(path: Path) -> None:
    """Finish what a process that was killed while it replaced a folder has left undone."""
    standing = standing_directory(path)
    if standing != path:
        os.replace(standing, path)
    remove_directory(_outgoing(path))


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove what killed processes of this machine have left half-written in a folder.

    Unless only leftovers `of` one name are removed, no other machine may be writing there.
    """
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        found = _PARTIAL.fullmatch(path.name)
        if found is None or of not in (None, found[1]) or is_running(int(found[2])):
            continue
        with contextlib.suppress(OSError):
            if path.is_dir():
                remove_directory(path)
            else:
                path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 text file in one piece."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file in one piece."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A path that is not UTF-8 has characters that only JSON's own way of writing them can carry.
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote.

    Raises:
        DataError: The file is not a JSON object.
    """
    if path.exists() and not path.is_file():  # a pipe would never end
        raise DataError(f"{path} is not a file: delete it and make it again")
    with path.open("rb") as file:
        content = file.read(_MAX_JSON_BYTES + 1)
    try:
        if len(content) > _MAX_JSON_BYTES:
            raise ValueError("too large")
        value = json.loads(content)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): delete it and make it again") from error
    return value


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def is_running(process_id: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _replace_directory(path: Path, *, by: Path) -> None:
    """Put a folder in another's place; the other's content is then to be found under `by`."""
    try:
        _exchange(path, by)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        # Not in one go, but so that `standing_directory` finds the older one meanwhile.
        outgoing = _outgoing(path)
        remove_directory(outgoing)
        os.replace(path, outgoing)
        try:
            os.replace(by, path)
        except OSError:
            os.replace(outgoing, path)
            raise
        os.replace(outgoing, by)


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders atomically.

    Raises:
        OSError: It failed; with an error number of _UNSUPPORTED, the system does not support it.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = os.fsencode(one), os.fsencode(other)
    if rename(_WORKING_DIRECTORY, names[0], _WORKING_DIRECTORY, names[1], _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def _outgoing(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
