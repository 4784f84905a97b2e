"""What a reader is to the fuzzer, and how to run commands as one."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzing.damage import Damage

from tfm.cli.main import main as run_command
from tfm.data.synthetic.corpus import generate_pairs

_PAIRS = list(generate_pairs("train", num_pairs=40, seed=1))


class Refused(Exception):  # noqa: N818 - what the command did, not what went wrong
    """The command ended with an exit code that is not 0."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One kind of file.

    Attributes:
        name: What it is.
        files: The files to damage, each with the ways that suit it besides those for all.
        make: Writes sound files into a folder.
        read: Reads them in the working folder; returns what it found.
        is_checked: Whether a checksum covers the bytes.
        is_sealed: Whether a checksum covers even what is packed again.
        may_be_no_file: Whether a folder, a link to nowhere or the like may take the file's place.
        may_be_pipe: Whether a pipe may; where pipes are welcome, they would be waited for.
    """

    name: str
    files: Mapping[str, Sequence[Damage]]
    make: Callable[[Path], None]
    read: Callable[[Path], str]
    is_checked: bool = False
    is_sealed: bool = False
    may_be_no_file: bool = True
    may_be_pipe: bool = True


def tfm(*arguments: str) -> None:
    """Run a command as the command line does."""
    sys.argv = ["tfm", *arguments]
    try:
        run_command()
    except SystemExit as end:
        if end.code:
            raise Refused from None


def found(folder: Path, pattern: str) -> str:
    """What files hold."""
    return "\n".join(
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.glob(pattern))
    )


def as_text(side: int) -> bytes:
    """One side of a little text: 0 for the source, 1 for the target."""
    return "".join(f"{pair[side]}\n" for pair in _PAIRS).encode()


def as_sgml(side: int) -> bytes:
    """The same as SGML."""
    lines = (f'<seg id="{number}">{pair[side]} &amp;</seg>\n' for number, pair in enumerate(_PAIRS))
    return f'<srcset setid="x">\n{"".join(lines)}</srcset>\n'.encode()
