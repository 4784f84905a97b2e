"""Checks of the paths that a user gives, so that all commands and Python functions refuse alike.

The checks are annotations of parameters, so that a wrong path is reported before any work starts.
"""

import os
import re
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tfm.errors import UsageError, explain_os_error
from tfm.storage.files import existing_parent, intact_directory, is_same_file, output_target

PathsT = TypeVar("PathsT", bound="Path | Iterable[Path] | None")

STANDARD_STREAM = Path("-")
DATA_ROOT, RUNS_ROOT, MODELS_ROOT = Path("data"), Path("runs"), Path("models")

# The paths of the files that belong to a folder, by a file that shows the kind of the folder.
_OWN_FILES = {
    "manifest.json": (
        "dataset",
        (
            r"(manifest|runs)\.json|dropped\.txt|(shortlist|seen)\.safetensors|bpe\..+|(bin|raw|downloads|sets)/.+"
            r"|(train|valid|test)(\.[0-9]+)?\.[^.]+"
        ),
    ),
    "config.json": ("model", r"(config|tfm|alignment)\.json|.+\.safetensors|model\.bin|bpe\..+"),
    "config.toml": ("run", r"config\.toml|data\.json|metrics\.jsonl|report\.html|events\.out\..*"),
}

# What shows the kind of a folder, and how many of the folders around and in it are looked at.
_KINDS = (
    ("dataset", ("manifest.json", "bin")),
    ("dataset", ("manifest.json", "train.*")),
    ("run", ("config.toml", "data.json")),
    ("run", ("metrics.jsonl",)),
    ("run", ("checkpoints/step-*",)),
    ("model", ("config.json", "*.safetensors")),
)
_MAX_LEVELS, _MAX_ENTRIES = 3, 1_000


def kind_of(folder: Path) -> str | None:
    """Return whether a folder is a dataset, run or model; None if it is none of them."""
    kinds = (kind for kind, names in _KINDS if all(any(folder.glob(name)) for name in names))
    return next(kinds, None)


def where_instead(path: Path, *kinds: str) -> str | None:
    """Return what to do about a path that is no folder of some kinds; None without advice."""
    for around in (*path.parents[:_MAX_LEVELS], *path.absolute().parents[:_MAX_LEVELS]):
        if (kind := kind_of(around)) in kinds:
            return f"name {around}, the {kind} around it"
    for inside in islice(sorted(path.glob("*/")), _MAX_ENTRIES):
        if (kind := kind_of(inside)) in kinds:
            return f"name one of its {kind}s, such as {inside}"
    kind = kind_of(path)
    return None if kind is None or kind in kinds else f"it is a {kind}"


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
            advice = where_instead(path, "dataset", "run", "model") or "check its name"
            raise UsageError(f"{path} is a file, not a folder: {advice}")
    return paths


def new_output_folder(path: Path, *, own: Collection[str] | None, kind: str, force: bool) -> None:
    """Raise UsageError unless a folder is new, or by force replaces a folder of this kind.

    `own` are the names that an earlier call wrote there, None if it is not of this kind. A folder
    with others is not replaced.
    """
    if not path.exists():
        return
    if own is None:
        raise UsageError(f"{path} exists and is no {kind}: choose another folder with --out")
    if not force:
        raise UsageError(
            f"{path} exists: replace it with --force, or choose another folder with --out"
        )
    if others := sorted({each.name for each in path.iterdir()}.difference(own)):
        raise UsageError(
            f"{path / others[0]} is not of the {kind}, which --force would replace: move it, or "
            "choose another folder with --out"
        )


def new_file(path: Path | None, *, flag: str, read: Iterable[object] = ()) -> Path | None:
    """Return the path; raise UsageError unless a file can be created or replaced there.

    Files of datasets, models and runs are not replaced, nor the paths among what is `read`. The
    errors name the flag of the path.
    """
    if path is None:
        return None
    paths = [Path(each) for each in read if isinstance(each, str | os.PathLike)]
    if path in paths or any(is_same_file(path, each) for each in paths):
        raise UsageError(
            f"{path} would be both read and overwritten: choose another name with {flag}"
        )
    if path == STANDARD_STREAM:
        raise UsageError(f"{path} is standard output: leave {flag} out, or give the name of a file")
    target = output_target(path, flag=flag)
    real_path = Path(os.path.realpath(target))
    for folder in real_path.parents[:2]:
        name = real_path.relative_to(folder).as_posix()
        for marker, (kind, own_names) in _OWN_FILES.items():
            if re.fullmatch(own_names, name) and (folder / marker).is_file():
                raise UsageError(f"{path} belongs to a {kind}: choose another name with {flag}")
    _check_takes_files(target.parent, path)
    return path


def new_file_or_stream(path: Path | None) -> Path | None:
    """Return the path, as `new_file` for --output does, but None if it is "-", standard output."""
    return None if path == STANDARD_STREAM else new_file(path, flag="--output")


def new_folder(path: Path | None) -> Path | None:
    """Return the path; raise UsageError unless it is a folder or can be created."""
    if path is not None:
        _check_takes_files(output_target(path, is_folder=True), path)
    return path


def _each(paths: "Path | Iterable[Path] | None") -> Iterable[Path]:
    return [paths] if isinstance(paths, Path) else paths or []


def _check_exists(path: Path) -> None:
    try:
        intact_directory(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {explain_os_error(error)}") from error


def _check_takes_files(folder: Path, path: Path) -> None:
    """Raise UsageError unless files can be created in a folder or the nearest parent that exists.

    The error names the `path` to write to.
    """
    folder = existing_parent(folder)
    try:
        # Permissions are not enough: root may write to /proc, where no file can be created.
        TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:
        raise UsageError(
            f"cannot write to {path}: cannot create files in {folder} ({error.strerror}): choose "
            "another name"
        ) from error
