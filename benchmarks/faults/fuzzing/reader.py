"""What the fuzzer must know of a reader, and how a reader runs commands."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzing.damage import Damage

from tfm.cli.main import main as run_command
from tfm.data.synthetic.corpus import generate_pairs

# The variable with the time limit of commands that run in processes of their own, in seconds.
PROCESSES = "TFM_FUZZ_PROCESSES"
_TFM = (sys.executable, "-m", "tfm")
_PAIRS = list(generate_pairs("train", num_pairs=40, seed=1))


class Refused(Exception):  # noqa: N818 - the expected outcome, not an error
    """The command ended with a nonzero exit code."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of one kind of file.

    Attributes:
        name: Kind of file.
        files: {file to damage: kinds of damage for it, besides those for all files}.
        make: Writes valid files into a folder.
        read: Reads the files in the working folder and returns their content.
        is_checked: Whether a checksum covers the bytes.
        is_sealed: Whether a checksum also covers content that is damaged and compressed again.
        may_be_no_file: Replace the file by a folder, a dangling link or the like, too.
        may_be_pipe: Replace the file by a pipe, too. Commands that accept pipes would wait for it.
        has_bytes: Change arbitrary bytes, too.
    """

    name: str
    files: Mapping[str, Sequence[Damage]]
    make: Callable[[Path], None]
    read: Callable[[Path], str]
    is_checked: bool = False
    is_sealed: bool = False
    may_be_no_file: bool = True
    may_be_pipe: bool = True
    has_bytes: bool = True


def tfm(*arguments: str) -> None:
    """Run a command as from the command line; in a process of its own if PROCESSES is set."""
    if PROCESSES in os.environ:
        seconds = float(os.environ[PROCESSES])
        if subprocess.run([*_TFM, *arguments], timeout=seconds, check=False).returncode:
            raise Refused
        return
    sys.argv = ["tfm", *arguments]
    try:
        run_command()
    except SystemExit as end:
        if end.code:
            raise Refused from None


def file_hashes(folder: Path, pattern: str) -> str:
    """Return the names and hashes of the matching files, one per line."""
    return "\n".join(
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.glob(pattern))
    )


def as_text(side: int) -> bytes:
    """Return one side of a small text: 0 for the source, 1 for the target."""
    return "".join(f"{pair[side]}\n" for pair in _PAIRS).encode()


def as_sgml(side: int) -> bytes:
    """Return one side of a small text as SGML."""
    lines = (f'<seg id="{number}">{pair[side]} &amp;</seg>\n' for number, pair in enumerate(_PAIRS))
    return f'<srcset setid="x">\n{"".join(lines)}</srcset>\n'.encode()
