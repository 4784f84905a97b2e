"""metrics.jsonl: the figures of a run, a JSON object a line."""

import json
from collections.abc import Mapping
from pathlib import Path

from tfm.runtime.files import write_text


class MetricsLog:
    """Appends to a run's metrics.jsonl.

    Args:
        run_dir: The run.
        step: Where the run stands; lines of later steps, from before a crash, are taken out.
    """

    def __init__(self, run_dir: Path, *, step: int) -> None:
        self._path = run_dir / "metrics.jsonl"
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        kept = "".join(f"{line}\n" for line in text.splitlines() if _step_of(line) <= step)
        if kept != text:
            write_text(self._path, kept)

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line, at once visible to readers."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _step_of(line: str) -> float:
    """The step of a line; a line that a crash cut short belongs to none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
