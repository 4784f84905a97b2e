"""Run the scripts of other libraries one after another, and tabulate their results."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NUM_LAST_LINES = 15  # of the log of a script that has failed


def run(
    python: Path,
    script: Path,
    settings: Mapping[str, object],
    stem: Path,
    *,
    threads: int,
    limit_seconds: float | None = None,
) -> dict[str, Any] | None:
    """Run a script that writes one JSON object, in its own process.

    Args:
        python: The Python of the library's environment.
        script: The script.
        settings: Its flags, by name; --out is added.
        stem: Path of the JSON object and the log, without suffix.
        threads: The number of OpenMP and MKL threads.
        limit_seconds: The script has failed after this time.

    Returns:
        The object; None if the script failed, after a message on stderr.
    """
    out, log = stem.with_suffix(".json"), stem.with_suffix(".log")
    out.unlink(missing_ok=True)
    command: list[str | Path] = [python, "-W", "ignore", script]
    for name, value in {**settings, "out": out}.items():
        command += [f"--{name}", str(value)]
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with log.open("w") as file:
        try:
            process = subprocess.run(
                command,
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=limit_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{stem.name}: not done after {limit_seconds:g} s, see {log}", file=sys.stderr)
            return None
    if process.returncode:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:])
        print(f"{stem.name}: exit status {process.returncode}, see {log}:\n{last}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def median(rounds: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the median of a value over some rounds."""
    return float(statistics.median(result[key] for result in rounds))


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
