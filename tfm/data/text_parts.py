"""Text in parts of a bounded number of pairs."""

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tfm.config.schema import shown
from tfm.data.manifest import Manifest, part_name
from tfm.data.text import BytesPair
from tfm.errors import UsageError
from tfm.storage.files import atomic_write


@dataclass(frozen=True)
class Share:
    """One of several shares of the text, for one of several machines; numbers count from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read a share such as 3/8.

        Raises:
            UsageError: It is not one.
        """
        if match := re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text):
            share = cls(int(match[1]), int(match[2]))
            if 1 <= share.number <= share.count:
                return share
        raise UsageError(f"--part is {shown(text)}, but must be I/N, such as 3/8 for share 3 of 8")

    def __str__(self) -> str:
        """Return the share as it is parsed."""
        return f"{self.number}/{self.count}"

    def folder(self, data_dir: Path) -> Path:
        """Return the folder in which this share of a dataset is locked and written."""
        return data_dir / "parts" / f"{self.number}-of-{self.count}"


class PartWriter:
    """Writes pairs to the parts of a split, one after the other.

    All parts replace older files when `stack` is closed without an error.

    Args:
        stack: Keeps the files open.
        manifest: The dataset.
        split: The split.
        max_pairs: Maximum number of pairs in a part; None: there is only one part.
        first: Number of the first part to write.

    Attributes:
        sizes: Numbers of pairs in the parts so far.
    """

    def __init__(
        self,
        stack: ExitStack,
        manifest: Manifest,
        split: str,
        *,
        max_pairs: int | None,
        first: int = 1,
    ) -> None:
        self._stack = stack
        self._manifest = manifest
        self._split = split
        self._max_pairs = max_pairs
        self._first = first
        self._files: dict[Path, IO[bytes]] = {}
        self.sizes: list[int] = []
        self._start_part()

    @property
    def paths(self) -> list[Path]:
        """The files that are written."""
        return list(self._files)

    def write(self, pairs: list[BytesPair]) -> None:
        """Write pairs of lines."""
        while pairs:
            if self.sizes[-1] == self._max_pairs:
                self._start_part()
            room = len(pairs) if self._max_pairs is None else self._max_pairs - self.sizes[-1]
            for number, file in enumerate(self._current):
                file.writelines(pair[number] + b"\n" for pair in pairs[:room])
            self.sizes[-1] += len(pairs[:room])
            pairs = pairs[room:]

    def open(self, suffix: str) -> IO[bytes]:
        """Open another file of the part."""
        name = part_name(self._split, self._first + len(self.sizes) - 1)
        path = self._manifest.text_path(name, suffix)
        self._files[path] = self._stack.enter_context(atomic_write(path))
        return self._files[path]

    def flush(self) -> None:
        """Write all files to disk, under their temporary names."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def _start_part(self) -> None:
        self.sizes.append(0)
        self._current = [self.open(lang) for lang in (self._manifest.source, self._manifest.target)]
