"""Checks of the paths that a user gives, so that all commands and Python functions refuse alike.

The checks are annotations of parameters, so that a wrong path is reported before any work starts.
"""

import os
import re
import shlex
import shutil
import stat
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

from tfm.disk.files import (
    STDIN_FILE,
    STREAMS,
    existing_parent,
    intact_directory,
    is_open_as,
    is_same_file,
    output_target,
    read_json,
)
from tfm.errors import DataError, UsageError, explain_os_error

PathsT = TypeVar("PathsT", bound="Path | Iterable[Path] | None")

STANDARD_STREAM = Path("-")
PARTIAL = (".partial", ".partial.json")  # of FILE, which is continued: its lines, and their record
LAST_GENERATION = "last-generation.json"  # in RUNS_ROOT: what tfm generate translated last
DATA_ROOT, RUNS_ROOT, MODELS_ROOT = Path("data"), Path("runs"), Path("models")

# The paths of the files that belong to a folder, by a file that shows the kind of the folder.
_OWN_FILES = {
    "manifest.json": (
        "dataset",
        (
            r"(manifest|runs)\.json|dropped\.txt|seen\.safetensors|bpe\..+|(bin|raw|downloads|sets|\.draft|\.ready)/.+"
            r"|(train|valid|test|mono)(\.[0-9]+)?\.[^.]+|\.lock"
        ),
    ),
    "config.json": (
        "model",
        (
            r"((\w+_)?(config|vocab(ulary)?)|tfm|alignment|tokenizer|special_tokens_map|.+\.index)\.json"
            r"|.+\.(safetensors|spm)|(.+_)?model[^/]*\.bin|.+_vocabulary\.txt|bpe\..+"
        ),
    ),
    "decoder.yml": ("model", r".+\.(npz|spm|yml)"),
    "tfm.json": ("model", r"tfm\.json"),
    "config.toml": (
        "run",
        r"config\.toml|data\.json|metrics\.jsonl|report\.html|events\.out\..*|\.lock",
    ),
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
_HEADER_BYTES = 4_096  # the beginning of a picture or page, which names its generator


def kind_of(folder: Path) -> str | None:
    """Return whether a folder is a dataset, run or model; None if it is none of them."""
    kinds = (kind for kind, names in _KINDS if all(any(folder.glob(name)) for name in names))
    return next(kinds, None)


def where_instead(path: Path, *kinds: str) -> str | None:
    """Return advice about a path that is no folder of some kinds; None without advice."""
    for around in (*path.parents[:_MAX_LEVELS], *path.absolute().parents[:_MAX_LEVELS]):
        if (kind := kind_of(around)) in kinds:
            return f"name {around}, the {kind} around it"
    for inside in islice(sorted(path.glob("*/")), _MAX_ENTRIES):
        if (kind := kind_of(inside)) in kinds:
            return f"name one of its {kind}s, such as {inside}"
    kind = kind_of(path)
    return None if kind is None or kind in kinds else f"it is a {kind}: name a {' or '.join(kinds)}"


def existing_path(paths: PathsT, kind: Literal["file", "folder"] | None = None) -> PathsT:
    """Return the paths; raise UsageError unless they exist, and are files or folders.

    Pipes are files, too. Typer checks that the paths are readable.
    """
    for path in _each(paths):
        try:
            intact_directory(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{path} does not exist: check its name") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {explain_os_error(error)}") from error
        if kind == "file" and path.is_dir():
            raise UsageError(f"{path} is a folder, not a file: check its name")
        if kind == "folder" and path.exists() and not path.is_dir():
            advice = where_instead(path, "dataset", "run", "model") or (
                "name a dataset, run or model; tfm prepare --train makes datasets of text"
            )
            raise UsageError(f"{path} is a file, not a folder: {advice}")
    return paths


def _each(paths: "Path | Iterable[Path] | None") -> Iterable[Path]:
    return [paths] if isinstance(paths, Path) else paths or []


def existing_file(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they are files or pipes."""
    return existing_path(paths, "file")


def existing_file_or_stream(path: Path | None) -> Path | None:
    """Return the path; raise UsageError unless it can be read, or is "-" for standard input."""
    return path if path == STANDARD_STREAM else existing_file(path)


def existing_folder(paths: PathsT) -> PathsT:
    """Return the paths; raise UsageError unless they are folders."""
    return existing_path(paths, "folder")


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


def check_written_by(path: Path, generator: str) -> None:
    """Raise UsageError if a file exists whose beginning does not name its generator."""
    if path.is_file():
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if header and generator.encode() not in header:
            raise UsageError(
                f"{path} exists and was not written by {generator}: choose another name with --out"
            )


@dataclass(frozen=True, kw_only=True)
class OutputPath:
    """A path that a command writes; as a mark of a parameter, it has no path and flag yet.

    Attributes:
        path: A file, or a folder.
        flag: The flag that names it, for messages.
        is_folder: Whether it is a folder.
        others: Endings of the names of files that are written beside a file, such as ".partial", or
            names of files that are written into a folder.
    """

    path: Path = Path()
    flag: str = ""
    is_folder: bool = False
    others: Collection[str] = ()

    @property
    def files(self) -> list[Path]:
        """The files that are written, as far as they are known."""
        if self.is_folder:
            return [self.path / name for name in self.others]
        # Of a link, they are beside the file that it leads to.
        beside = (Path(f"{os.path.realpath(self.path)}{ending}") for ending in self.others)
        return [self.path, *beside]

    def collides_with(self, other: "OutputPath") -> bool:
        """Return whether a path replaces the other, or is a file where the other has a folder."""
        if any(is_same_file(*pair) for pair in product(self.files, other.files)):
            return True
        one, two = Path(os.path.realpath(self.path)), Path(os.path.realpath(other.path))
        is_inside = (not self.is_folder and one in two.parents) or (
            not other.is_folder and two in one.parents
        )
        return is_inside or one == two


def check_outputs(outputs: Sequence[OutputPath], read: Iterable[Path]) -> None:
    """Raise UsageError unless a command can write its outputs without losing anything.

    An output is nothing that is `read`, no other output, and no file of a dataset, model or run,
    whatever names and links lead to it.
    """
    # Methods of Path fail on long names, such as lines of text.
    inputs = [path for path in read if os.path.isfile(path)] if outputs else []  # noqa: PTH113
    for number, output in enumerate(outputs):
        advice = f"choose another {'folder' if output.is_folder else 'name'} with {output.flag}"
        for file, path in product(output.files, inputs):
            if is_same_file(file, path):
                name = file if output.is_folder else output.path
                raise UsageError(f"{name} would be both read and overwritten: {advice}")
        for other in filter(output.collides_with, outputs[:number]):
            raise UsageError(f"{other.flag} writes to {output.path}, too: {advice}")
        _check_writable(output)


def check_streams(read: Iterable[Path]) -> None:
    """Raise UsageError if standard output or error go to a file that is `read`."""
    for path in (STDIN_FILE, *read):
        with suppress(OSError, ValueError):  # of a path that does not exist
            status = path.stat()
            names = [name for number, name in STREAMS.items() if is_open_as(number, status)]
            if names and stat.S_ISREG(status.st_mode):
                raise UsageError(
                    f"{path} would be both read and overwritten, because {names[0]}: redirect it "
                    "to another file"
                )


def _check_writable(output: OutputPath) -> None:
    """Raise UsageError if an output cannot be written, or belongs to a dataset, model or run."""
    path, flag = output.path, output.flag
    if output.is_folder:
        _check_takes_files(output_target(path, is_folder=True), path)
        return
    if path == STANDARD_STREAM:
        raise UsageError(f"{path} is standard output: leave {flag} out, or give the name of a file")
    target = output_target(path, flag=flag)
    real_path = Path(os.path.realpath(target))
    if real_path.name == LAST_GENERATION:
        raise UsageError(f"{path} belongs to tfm generate: choose another name with {flag}")
    for folder in real_path.parents[:_MAX_LEVELS]:
        name = real_path.relative_to(folder).as_posix()
        for marker, (kind, own_names) in _OWN_FILES.items():
            if (folder / marker).is_file() and (
                re.fullmatch(own_names, name) or name in _listed_files(folder / marker)
            ):
                raise UsageError(f"{path} belongs to a {kind}: choose another name with {flag}")
    _check_takes_files(target.parent, path)


def _listed_files(record_path: Path) -> set[str]:
    """Return the files that the record of a model or an export lists; none of another file."""
    with suppress(DataError, OSError):
        record = read_json(record_path)
        lists = (record.get("sha256"), record.get("files"))
        return {str(name) for names in lists if isinstance(names, list | dict) for name in names}
    return set()


def files_of_command(command: str) -> list[Path]:
    """Return the files that a command line names: its programs, also by PATH, and its arguments."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    found: list[Path] = []
    with suppress(ValueError):  # an unclosed quotation mark; the shell will report it
        for word in words:
            names = (shutil.which(word) or word, word.partition("=")[2])
            found += [Path(name) for name in names if os.path.isfile(name)]  # noqa: PTH113
    return found


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
