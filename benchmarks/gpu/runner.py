"""Run the steps of a stage one after another, each in a process with a time limit."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from tfm.storage.files import write_json

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
NOT_RUN, NEEDS_GPU = "no time left", "needs a GPU"

# Marks the processes of a step in their environment, so that none outlives its time limit.
_MARK = "TFM_GPU_STEP"
_MIN_SECONDS, _MAX_KILL_SECONDS = 5.0, 10.0
_TAIL_BYTES = 3_000


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command that prints its result to stdout: a JSON object in the last line, or Markdown.

    Attributes:
        command: Arguments of Python: text and paths.
        limit_seconds: The step is stopped after this time, or earlier if the stage has less left.
        summarize: Returns the line of the table for a JSON result.
        only_on_gpu: Whether there is nothing to run in a dry run.
    """

    name: str
    command: Sequence[object]
    limit_seconds: float
    summarize: Callable[[Any], str] = lambda result: str(result.get("summary", ""))
    environment: Mapping[str, str] = field(default_factory=dict)
    only_on_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a step."""

    name: str
    status: str
    seconds: float = 0.0
    limit_seconds: float = 0.0
    exit_code: int | None = None  # None if the step was stopped or did not run
    summary: str = ""
    result: Any = None  # of JSON
    stdout: str = ""  # without JSON
    log_tail: str = ""  # the end of stderr, if the step has not passed


def run_stage(
    steps: Sequence[Step],
    out: Path,
    *,
    seconds: float,
    environment: Mapping[str, str],
    dry_run: bool,
) -> list[Outcome]:
    """Run steps in order until the time is over, and write OUT.json after each of them.

    stdout and stderr of all steps go to OUT.log. In a dry run, steps that need a GPU say so.
    """
    deadline = time.monotonic() + seconds
    outcomes: list[Outcome] = []
    with out.with_suffix(".log").open("w+b", buffering=0) as log:
        for step in steps:
            limit = min(step.limit_seconds, deadline - time.monotonic())
            if dry_run and step.only_on_gpu:
                outcome = Outcome(name=step.name, status=NEEDS_GPU)
            elif limit < min(_MIN_SECONDS, step.limit_seconds):
                outcome = Outcome(name=step.name, status=NOT_RUN)
            else:
                print(f"{step.name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
                outcome = _run(step, limit, log, environment, dry_run=dry_run)
            outcomes.append(outcome)
            write_json(out.with_suffix(".json"), {"steps": [asdict(each) for each in outcomes]})
    return outcomes


def succeeded(outcomes: Sequence[Outcome]) -> bool:
    """Return whether all steps have passed, except those that a dry run left out."""
    return all(each.status in (PASSED, NEEDS_GPU) for each in outcomes)


def _run(
    step: Step, limit: float, log: IO[bytes], environment: Mapping[str, str], *, dry_run: bool
) -> Outcome:
    mark = secrets.token_hex(8)
    log.write(f"== {step.name}: {' '.join(map(str, step.command))}\n".encode())
    start, started = log.tell(), time.monotonic()
    exit_code = None
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *map(str, step.command)],
            env={**environment, **step.environment, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                exit_code = process.wait(timeout=limit)
        finally:
            process.kill()
            _kill(mark)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_MAX_KILL_SECONDS)
        log.seek(max(start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        log_tail = log.read().decode(errors="replace")
        output.seek(0)
        content = output.read()
    log.write(content)
    result, text = _parse(content.decode(errors="replace"))
    status = TIMED_OUT if exit_code is None else FAILED if exit_code else PASSED
    if status == PASSED and dry_run and isinstance(result, dict) and result.get("needs_gpu"):
        status = NEEDS_GPU
    return Outcome(
        name=step.name,
        status=status,
        seconds=time.monotonic() - started,
        limit_seconds=limit,
        exit_code=exit_code,
        summary="" if result is None else step.summarize(result),
        result=result,
        stdout=text,
        log_tail="" if status in (PASSED, NEEDS_GPU) else log_tail,
    )


def _parse(stdout: str) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON object in the last line, if there is one, and the text before it."""
    text, _, last = stdout.rstrip("\n").rpartition("\n")
    with contextlib.suppress(json.JSONDecodeError):
        if isinstance(result := json.loads(last), dict):
            return result, text
    return None, stdout


def _kill(mark: str) -> None:
    """Kill all processes of a step, including those whose parents have ended.

    A process that waits for a GPU may survive, so this gives up after some seconds.
    """
    marked, deadline = f"{_MARK}={mark}".encode(), time.monotonic() + _MAX_KILL_SECONDS
    while pids := [pid for pid, variables in _environments() if marked in variables]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    """Yield process id and environment of all processes that this user may inspect."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            yield int(path.parent.name), path.read_bytes().split(b"\0")
