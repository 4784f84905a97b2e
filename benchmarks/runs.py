"""Runs of other libraries' programs, one after another, and the table of what came out."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run(
    python: Path,
    script: Path,
    settings: Mapping[str, object],
    stem: Path,
    *,
    threads: int,
    limit_seconds: float | None = None,
) -> dict[str, Any] | None:
    """Run a script that writes one JSON object, in a process of its own.

    Args:
        python: What to run it with.
        script: The script.
        settings: Its flags, by name; it is also given --out.
        stem: What it writes, and what it says, is kept here, as .json and .log.
        threads: Threads of OpenMP and MKL.
        limit_seconds: After so long it has failed.

    Returns:
        The object; None if the script fails, which is said.
    """
    out, log = stem.with_suffix(".json"), stem.with_suffix(".log")
    out.unlink(missing_ok=True)
    command = [python, "-W", "ignore", script]
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
        *_, last = ["", *log.read_text(errors="replace").split("\n")[:-1]]
        print(f"{stem.name}: exit status {process.returncode}, see {log}: {last}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def median(rounds: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median of a figure of some runs."""
    return statistics.median(one[key] for one in rounds)


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
