"""Files that are whole or absent: written aside, flushed to disk, then renamed."""

import contextlib
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
_PARTIAL = re.compile(r"\.(.+)\.([0-9]+)\.partial")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the name `path` only once the block has ended well.

    Args:
        path: The final name; an older file of that name stays until then.

    Yields:
        A binary file to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
    """Fill a folder that takes the name `path` only once the block has ended well.

    Args:
        path: The final name; an older folder of that name is replaced.

    Yields:
        The temporary folder to fill.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, of=path.name)
    partial = _aside(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            _sync_file(file)
        sync_directory(partial)
        if path.exists():
            outgoing = _aside(path.with_name(path.name + ".old"))
            os.replace(path, outgoing)
            os.replace(partial, path)
            shutil.rmtree(outgoing)
        else:
            os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_directory(path.parent)


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove what processes that were killed on this machine have left half-written in a folder.

    Args:
        folder: Which nobody on another machine is writing to, unless `of` is given.
        of: Only what was to become the file or folder of this name.
    """
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        found = _PARTIAL.fullmatch(path.name)
        if found is None or of not in (None, found[1]) or _is_running(int(found[2])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 text file in one piece."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file in one piece."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote.

    Raises:
        DataError: The file is not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): delete it and make it again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged (not a JSON object): delete it and make it again")
    return value


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
