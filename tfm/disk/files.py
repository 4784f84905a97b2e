"""Atomic files and directories: written under another name, flushed to disk, then renamed."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar

from tfm.config.values import from_table, shown
from tfm.errors import DataError, UsageError
from tfm.reporting import say

T = TypeVar("T")

STDIN_FILE = Path("/dev/stdin")  # the file or pipe that standard input reads

_MAX_JSON_BYTES = 1 << 26  # a thousand times the size of tfm's own files
_PARTIAL = re.compile(r"\.(.+)\.([0-9]+)\.partial")
_MAX_LINKS = 40  # of a chain, as in Linux
_OPEN_FILES = re.compile(r"/dev/fd|/proc/.+/fd")  # folders with the open files of a process
STREAMS = {1: "it is standard output", 2: "it is standard error"}
# Errors of file systems that cannot flush directories.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def output_target(path: Path, *, flag: str | None = None, is_folder: bool = False) -> Path:
    """Return the file or folder that writing to a path creates or replaces.

    All outputs go through here. Links are followed and stay. Devices, pipes and open standard
    streams are not replaced by a file, since other programs may write to them.

    Args:
        path: A name to write to.
        flag: The flag that the user gave it with; without the flag, the command prints.
        is_folder: Whether to write a folder.
    """
    target = _end_of_links(path)
    try:
        obstacle = _obstacle(path, target, path.stat(), is_folder=is_folder)
    except (FileNotFoundError, NotADirectoryError):
        parent, obstacle = existing_parent(target.parent), None
        needed = intact_directory(target) if is_folder else target.parent
        if path.is_symlink() and not needed.is_dir():
            obstacle = f"it is a link, and there is no folder {needed}"
        elif parent.is_symlink() and not parent.exists():
            obstacle = f"{parent} is a link to a folder that does not exist"
        elif not parent.is_dir():
            obstacle = f"{parent} is not a folder"
    except OSError as error:  # such as a loop of links
        obstacle = str(error.strerror)
    if is_folder and not is_utf8(path):
        obstacle = "its name is not UTF-8"
    if obstacle is not None:
        advice = f"leave {flag} out, or " if flag and obstacle == STREAMS[1] else ""
        raise UsageError(f"cannot write to {path}: {obstacle}: {advice}choose another name")
    return target


def _obstacle(path: Path, target: Path, status: os.stat_result, *, is_folder: bool) -> str | None:
    """Return why a file or folder must not be replaced, or None; `path` leads to `target`."""
    if is_folder != stat.S_ISDIR(status.st_mode):
        return "it is a file, not a folder" if is_folder else "it is a folder"
    streams = [name for number, name in STREAMS.items() if is_open_as(number, status)]
    if streams:
        return streams[0]
    if not is_folder and not stat.S_ISREG(status.st_mode):
        return "it is a pipe or a device"
    if is_open_as(0, status):
        raise UsageError(f"{path} would be both read and overwritten: choose another name")
    return "it is an open file" if _is_open_file(target) else None


def is_utf8(path: Path) -> bool:
    """Return whether the name of a path is UTF-8, which safetensors needs."""
    return str(path) == str(path).encode(errors="ignore").decode()


def is_open_as(descriptor: int, status: os.stat_result) -> bool:
    """Return whether this process has a file open under a number."""
    with contextlib.suppress(OSError):  # the stream is closed
        return os.path.samestat(os.fstat(descriptor), status)
    return False


def _end_of_links(path: Path) -> Path:
    """Follow links, except for links to open files, which need not have a name."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink() or _is_open_file(path):
            break
        path = path.parent / path.readlink()
    return path


def _is_open_file(path: Path) -> bool:
    return _OPEN_FILES.fullmatch(os.path.realpath(path.parent)) is not None


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` only if the block ends without an error."""
    target = output_target(path)
    partial = _prepare(target)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        if error.errno is not None:  # None: an error of a decompressor, not of this file
            error.filename = error.filename or str(path)  # errors of `write` do not name the file
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(target.parent)


@contextlib.contextmanager
def atomic_directory(path: Path, *, own: Collection[str] | None = None) -> Iterator[Path]:
    """Create a directory of files that replaces `path` only if the block ends without an error.

    Of an older directory, only the names that are `own` are replaced or removed, None for all:
    the new one gets a copy of the others.

    At every moment, either the older directory or the new one is there, the older one perhaps under
    another name, where `intact_directory` finds it.
    """
    target = output_target(path, is_folder=True)
    if not target.name.strip("."):
        raise UsageError(f"{path} is replaced as a whole: give it by its name, from another folder")
    partial = _prepare(target)
    finish_replacement(target)
    remove_path(partial)
    partial.mkdir()
    try:
        yield partial
        if own is not None and target.is_dir():
            _copy_missing(target, partial, own)
        _sync_files(partial)
        if target.is_dir():
            os.replace(target, _outgoing(target))
        os.replace(partial, target)
        sync_directory(target.parent)  # the renames must reach the disk before the removal does
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            remove_path(partial)
            finish_replacement(target)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, so that they survive a power failure."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a directory with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def find_folders(root: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the wanted folders at and below a path, sorted, but none inside another.

    Hidden folders are left out; links are followed. A warning names each folder that cannot be
    read.
    """
    found, seen, pending = [], set(), [root]
    while pending:
        folder = pending.pop()
        try:
            status = folder.stat()
            if (identity := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(identity)
            if is_wanted(folder):
                found.append(folder)
                continue
            inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
            pending += filter(Path.is_dir, inside)
        except OSError as error:
            say(f"warning: {folder} is left out: {error.strerror}")
    return sorted(found)


def intact_directory(path: Path) -> Path:
    """Return the directory, or the older one if a process was killed while it replaced it."""
    if path.exists():  # it may be ".", which has no name to derive another from
        return path
    outgoing = _outgoing(_end_of_links(path))
    return outgoing if outgoing.is_dir() else path


def finish_replacement(path: Path) -> None:
    """Undo or finish the replacement of a directory by a process that was killed."""
    intact = intact_directory(path)
    if intact != path:
        os.replace(intact, path)
    remove_path(_outgoing(path))


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove the incomplete files and directories of killed processes of this machine.

    No other machine may be writing to the folder, unless only leftovers `of` one name are removed.
    """
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        match = _PARTIAL.fullmatch(path.name)
        if match and of in (None, match[1]) and not is_running(int(match[2])):
            with contextlib.suppress(OSError):
                remove_path(path)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 text file atomically."""
    with atomic_write(path) as file:
        # Paths that are not UTF-8 contain surrogates, which JSON can hold only as escapes.
        file.write(text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_record(path: Path, record: Any, *, format_: int) -> None:
    """Write a dataclass to a JSON file, with the number of its "format", for `read_record`."""
    write_json(path, {"format": format_, **asdict(record)})


def read_json(path: Path, *, advice: str = "delete it and create it again") -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote."""
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise DataError(f"{path} is not a file: {advice}")
    with path.open("rb") as file:
        content = file.read(_MAX_JSON_BYTES + 1)
    try:
        if len(content) > _MAX_JSON_BYTES:
            raise ValueError("too large")
        value = json.loads(content)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): {advice}") from error
    return value


def read_record(path: Path, kind: type[T], *, format_: int, advice: str) -> T:
    """Read a dataclass from a JSON file that `write_record` wrote."""
    record = read_json(path, advice=advice)
    if (written := record.pop("format", None)) != format_:
        problem = f"has format {shown(written)}, but this tfm reads format {format_}"
        raise DataError(f"{path} {problem}: {advice}")
    try:
        return from_table(kind, record)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): {advice}") from error


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists, even as a link to nothing."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    import hashlib  # loads OpenSSL

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_size(folder: Path) -> int:
    """Return the size of all files at and below a folder in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def have_sizes(folder: Path, sizes: Mapping[str, int]) -> bool:
    """Return whether files in a folder, {name: size in bytes}, are there in these sizes."""
    paths = {folder / name: size for name, size in sizes.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file or folder, also through links."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    return one.exists() and other.exists() and one.samefile(other)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power failure, if the file system supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _sync_files(folder: Path) -> None:
    """Make the files at and below a directory survive a power failure, and their names."""
    # Windows flushes only what is open for writing; elsewhere, files may be read-only.
    mode = "rb" if hasattr(os, "O_DIRECTORY") else "rb+"
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with path.open(mode) as file:
                    os.fsync(file.fileno())
        sync_directory(Path(parent))


def is_running(process_id: int) -> bool:
    """Return whether a process may be running."""
    if hasattr(signal, "CTRL_C_EVENT"):  # it is 0: on Windows, os.kill would send Ctrl-C
        return True
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process of another user
        pass
    return True


def _copy_missing(source: Path, target: Path, own: Collection[str]) -> None:
    """Copy files, links and folders that are not `own` to a folder that does not have them."""
    for path in source.iterdir():
        if path.name in own or (target / path.name).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def _outgoing(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _prepare(path: Path) -> Path:
    """Create the parent directory and remove leftovers; return the name to write to."""
    make_directory(path.parent)
    remove_leftovers(path.parent, of=path.name)
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
