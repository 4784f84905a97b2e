"""Checks of the paths that a user gives, so that all commands and Python functions refuse alike.

A wrong path is found before anything is loaded or computed. On the command line, the checks are
callbacks of flags.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tfm.errors import UsageError
from tfm.storage.files import intact_directory

PathsT = TypeVar("PathsT", bound="Path | Iterable[Path] | None")

STANDARD_STREAM = Path("-")


def existing_path(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they exist; typer checks that they are readable."""
    for path in _each(paths):
        _check_exists(path)
    return paths


def existing_file(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they are files or pipes."""
    for path in _each(existing_path(paths)):
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a file: check its name")
    return paths


def existing_file_or_stream(path: Path | None) -> Path | None:
    """Return the path; raise UsageError unless it can be read, or is "-" for standard input."""
    return path if path == STANDARD_STREAM else existing_file(path)


def existing_folder(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they are folders."""
    for path in _each(existing_path(paths)):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file, not a folder: check its name")
    return paths


def new_file_or_folder(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they can be created, or files created in them."""
    for path in _each(paths):
        parent = existing_parent(path if path.is_dir() else path.parent)
        if not parent.is_dir():
            raise _unwritable(path, f"{parent} is not a folder")
        _check_takes_files(parent, path)
    return paths


def new_output_folder(path: Path, *, is_own: bool, kind: str, force: bool) -> None:
    """Raise UsageError unless a folder can be written: a new one, or one of this kind by force."""
    if path.exists() and not is_own:
        raise UsageError(f"{path} exists and is no {kind}: choose another folder with --out")
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists: replace it with --force, or choose another folder with --out"
        )


def new_file(path: Path | None) -> Path | None:
    """Return the path; raise UsageError unless a regular file can be created or replaced there."""
    if path is None or path == STANDARD_STREAM:
        return path
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if path.exists() and not path.is_file():
        raise _unwritable(path, "it is a pipe or a device")
    return new_file_or_folder(path)


def new_folder(path: Path | None) -> Path | None:
    """Return the path; raise UsageError unless it is a folder or can be created."""
    if path is not None and path.exists() and not path.is_dir():
        raise _unwritable(path, "it is a file, not a folder")
    return new_file_or_folder(path)


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _each(paths: "Path | Iterable[Path] | None") -> Iterable[Path]:
    return [paths] if isinstance(paths, Path) else paths or []


def _check_exists(path: Path) -> None:
    try:
        intact_directory(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _check_takes_files(folder: Path, path: Path) -> None:
    try:
        # Permissions are not enough: root may write to /proc, where no file can be created.
        TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:
        reason = f"cannot create files in {folder} ({error.strerror})"
        raise _unwritable(path, reason) from error


def _unwritable(path: Path, reason: str) -> UsageError:
    return UsageError(f"cannot write to {path}: {reason}: choose another name")
