"""The record of the text that `tfm generate` translated last, for `tfm score` after a pipe."""

from dataclasses import dataclass
from pathlib import Path

from tfm.disk.files import is_same_file, read_record, write_record
from tfm.disk.paths import LAST_GENERATION, RUNS_ROOT
from tfm.errors import DataError, explain_os_error
from tfm.reporting import say

FORMAT = 2
FILE = RUNS_ROOT / LAST_GENERATION


@dataclass(frozen=True, kw_only=True)
class LastGeneration:
    """The record of the text that `tfm generate` translated last.

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
    def load(cls) -> "LastGeneration | None":
        """Read the record; return None if there is none, and with a warning if it is damaged."""
        if not FILE.is_file():
            return None
        try:
            return read_record(FILE, cls, format_=FORMAT, advice="generate again")
        except (DataError, OSError) as error:
            reason = explain_os_error(error) if isinstance(error, OSError) else error
            say(f"warning: the record of the last generation is not used: {reason}")
            return None

    def save(self) -> None:
        """Write the record, or warn that it cannot be written."""
        try:
            write_record(FILE, self, format_=FORMAT)
        except OSError as error:
            say(
                f"warning: {error.filename}: {error.strerror}; tfm score needs --reference this "
                "time"
            )

    def is_about(self, reference: object) -> bool:
        """Return whether a file is the first reference of its text."""
        files = map(Path, self.references[:1])
        return isinstance(reference, Path) and any(is_same_file(reference, file) for file in files)

    @property
    def source_file(self) -> Path | None:
        """The file of the text; None if it was standard input, or is gone."""
        path = Path(self.source)
        return path if path.is_file() else None
