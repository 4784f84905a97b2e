"""The record of the text that `tfm generate` translated last, for `tfm score` after a pipe."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfm.disk.files import is_same_file, read_record, write_record
from tfm.disk.paths import LAST_GENERATION, RUNS_ROOT
from tfm.errors import DataError, UsageError, explain_os_error
from tfm.reporting import say

FORMAT = 1
FILE = RUNS_ROOT / LAST_GENERATION
_MAX_PIPES = 20  # of the last pipes that were written to


@dataclass(frozen=True, kw_only=True)
class LastGeneration:
    """The record of the text that `tfm generate` translated last; empty if there is none.

    Attributes:
        model: The folders of its models.
        source: The name of the text.
        references: The files of its references; empty if unknown.
        source_language: The source language.
        language: The target language.
    """

    model: tuple[str, ...]
    source: str
    references: tuple[str, ...]
    source_language: str
    language: str

    @classmethod
    def load(cls) -> "LastGeneration":
        """Read the record of the pipe at standard input, or else the last one.

        It is empty if there is none, and with a warning if it is damaged.
        """
        of_pipe = _file_of(0)
        path = of_pipe if of_pipe.is_file() else FILE
        if path.is_file():
            try:
                return read_record(path, cls, format_=FORMAT, advice="generate again")
            except (DataError, OSError) as error:
                reason = explain_os_error(error) if isinstance(error, OSError) else error
                say(f"warning: the record of the last generation is not used: {reason}")
        return cls(model=(), source="", references=(), source_language="", language="")

    def save(self) -> None:
        """Write the record, also as that of a pipe, or warn that it cannot be written."""
        try:
            for path in {FILE, _file_of(1)}:
                write_record(path, self, format_=FORMAT)
        except (OSError, UsageError) as error:
            reason = f"{FILE}: {error.strerror}" if isinstance(error, OSError) else error
            say(f"warning: {reason}; tfm score needs --reference this time")
        with suppress(OSError):  # another process may have removed them
            records = sorted(RUNS_ROOT.glob(f".{FILE.stem}.*.json"), key=os.path.getmtime)
            for old in records[:-_MAX_PIPES]:
                old.unlink()

    def is_about(self, reference: object) -> bool:
        """Return whether a file is the first reference of its text."""
        files = map(Path, self.references[:1])
        return isinstance(reference, Path) and any(is_same_file(reference, file) for file in files)

    def known_references(self) -> Sequence[Path]:
        """Return the files of its references; raise UsageError if they are unknown."""
        if not self.source:
            raise UsageError(f"no reference given, nor recorded in {FILE}: pass --reference")
        if not self.references:
            raise UsageError(
                f"no reference given, and tfm generate read {self.source}, whose reference is "
                "unknown: pass --reference"
            )
        return [*map(Path, self.references)]

    def known_languages(self, test_set: str) -> tuple[str, str]:
        """Return the languages to name for a test set; raise UsageError if they are unknown."""
        if not self.source:
            raise UsageError(
                f"the languages are unknown: name them, as in --test-set {test_set}:en-de"
            )
        return self.source_language, self.language

    @property
    def source_file(self) -> Path | None:
        """The file of the text; None if it was standard input, or is gone."""
        path = Path(self.source)
        return path if path.is_file() else None


def _file_of(descriptor: int) -> Path:
    """Return the file of the record of a pipe, which is alike at both ends, or else of the last."""
    with suppress(OSError):  # the stream is closed
        status = os.fstat(descriptor)
        if stat.S_ISFIFO(status.st_mode):
            return FILE.with_name(f".{FILE.stem}.{status.st_ino}.json")
    return FILE
