"""metrics.jsonl: the figures of a run, a JSON object a line."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tfm.errors import DataError
from tfm.reporting import say
from tfm.storage.files import atomic_write


class MetricsLog:
    """Appends to a run's metrics.jsonl.

    Args:
        run_dir: The run.
        step: Where the run stands; lines of later steps, from before a crash, are taken out.

    Raises:
        DataError: What has that name is no file.
    """

    def __init__(self, run_dir: Path, *, step: int) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._unwritten: list[bytes] = []
        if self._path.exists() and not self._path.is_file():
            raise DataError(f"{self._path} is no file: move it out of the way")
        content = self._path.read_bytes() if self._path.exists() else b""
        kept = b"".join(b"%b\n" % line for line in content.split(b"\n") if _step_of(line) <= step)
        if kept != content:
            with atomic_write(self._path) as file:
                file.write(kept)
        self._size = len(kept)

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line, at once visible to readers.

        What a full disk has no room for stays in memory and is written before the next line.
        """
        self._unwritten.append(json.dumps(record).encode() + b"\n")
        try:
            self._write(b"".join(self._unwritten))
        except OSError as error:
            if len(self._unwritten) == 1:
                say(
                    f"warning: cannot write {self._path}: {error.strerror}; "
                    "its lines are kept until it works again"
                )
        else:
            self._unwritten.clear()

    def _write(self, lines: bytes) -> None:
        """Append lines, all or none.

        Raises:
            OSError: There is no room.
        """
        with self._path.open("ab", buffering=0) as file:
            size = min(file.seek(0, os.SEEK_END), self._size)
            file.truncate(size)  # what a failed attempt may have left
            written = 0
            try:
                while written < len(lines):  # a disk that fills up takes a part
                    written += file.write(lines[written:])
            except OSError:
                file.truncate(size)
                raise
        self._size = size + len(lines)


def _step_of(line: bytes) -> float:
    """The step of a line; a line that a crash cut short belongs to none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
