"""Fuzz every kind of file that tfm reads, and the values of all flags, and count the outcomes.

Each case runs in its own process, with limits on time and memory. It must end with a result, or
with one line that starts with "tfm: ", and a line for each of several mistakes. Damage that a
checksum covers must be refused. The same seed gives the same cases.

    .venv/bin/python benchmarks/faults/fuzz.py                       # 1,000 cases of each reader
    .venv/bin/python benchmarks/faults/fuzz.py --cases 20000 --reader "a tar archive" --seed 7
    .venv/bin/python benchmarks/faults/fuzz.py --show 12345 --reader "a tar archive"
    .venv/bin/python benchmarks/faults/fuzz.py --cases 200 --reader "values of flags" --processes
"""

import contextlib
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from fuzzing.damage import BYTES, PACKERS, insert_snippet, replace_file
from fuzzing.datasets import DATA_READERS
from fuzzing.models import MODEL_READERS
from fuzzing.reader import PROCESSES, Reader, Refused
from fuzzing.texts import TEXT_READERS
from fuzzing.values import VALUE_READERS

from tfm.errors import DETAIL, TfmError

READERS = (*TEXT_READERS, *DATA_READERS, *MODEL_READERS, *VALUE_READERS)

_GOOD = ("refused in one line", "read as before", "read as something else")
_SECONDS = 10
_STARTUP_SECONDS = 10  # of a process that loads torch, on a busy machine
_MEMORY_BYTES = 1 << 30  # more than the process has before it reads
_REPLACED_FILE_RATE = 0.05
_REFUSED, _CRASHED = 3, 4
# Modules that commands load late: each case would load them again.
_PRELOADED = (
    "pydantic.type_adapter",
    "pydantic.types",
    "typer._adapters",
    "typer.rich_utils",
    "tfm.cli.output",
    "tfm.data.corpus.user_files",
    "tfm.metrics.paper",
    "tfm.metrics.parsing",
    "tfm.stages.prepare",
    "tfm.stages.score",
)


@dataclass
class Outcomes:
    """The counts of the outcomes of a reader's cases, and a description of each fault."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")  # seconds of wall time, and the case


def main(
    cases: Annotated[int, typer.Option(help="Number of cases per reader.", min=1)] = 1_000,
    reader: Annotated[list[str] | None, typer.Option(help="Run only these readers.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the cases.")] = 1,
    show: Annotated[
        int | None, typer.Option(help="Run only this case and show its output.")
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Start each command as a real process.")
    ] = False,
) -> None:
    """Fuzz the readers and print a table."""
    if processes:
        os.environ[PROCESSES] = str(_SECONDS + _STARTUP_SECONDS)
    chosen = [each for each in READERS if not reader or each.name in reader]
    if not chosen:
        sys.exit(f"choose among: {', '.join(each.name for each in READERS)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads cannot be forked safely
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # other versions of typer
            importlib.import_module(name)
    os.fsync = lambda _: None  # faster; power failures are not tested here
    print(f"| reader | cases | {' | '.join(_GOOD)} | faults | slowest, s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    total = Outcomes()
    for each in chosen:
        first = seed * 1_000_000
        numbers = range(first, first + cases) if show is None else [show]
        outcomes = fuzz(each, numbers, is_shown=show is not None, starts_processes=processes)
        _print_row(each.name, outcomes)
        total.counts.update(outcomes.counts)
        total.faults += outcomes.faults
        total.slowest = max(total.slowest, outcomes.slowest)
    _print_row("all", total)
    print(f"slowest case: {total.slowest[1]}", file=sys.stderr)
    for fault in total.faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if total.faults else 0)


def fuzz(
    reader: Reader, numbers: Sequence[int], *, is_shown: bool, starts_processes: bool
) -> Outcomes:
    """Run cases of a reader."""
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        valid = Path(work, "valid")
        valid.mkdir()
        os.environ.pop(PROCESSES, None)
        with Path(os.devnull).open("w") as unread, contextlib.redirect_stderr(unread):
            reader.make(valid)
        if starts_processes:
            os.environ[PROCESSES] = str(_SECONDS + _STARTUP_SECONDS)
        expected = run_case(reader, _copy(valid, Path(work, "case")))
        if expected.ending != "read":
            sys.exit(f"{reader.name}: the undamaged files cannot be read: {expected.log}")
        for number in numbers:
            generator = random.Random(number)
            case = _copy(valid, Path(work, "case"))
            damage, is_covered = _damage(reader, case, generator)
            started = time.perf_counter()
            result = run_case(reader, case)
            seconds = time.perf_counter() - started
            outcomes.slowest = max(outcomes.slowest, (seconds, f"{reader.name}, case {number}"))
            if any(Path(work).rglob("outside*")):
                result.ending = "wrote outside of its folder"
            ending = _judge(result, expected, is_covered=is_covered)
            outcomes.counts[ending] += 1
            if ending not in _GOOD:
                outcomes.faults.append(f"{reader.name}, case {number}, {damage}: {ending}")
            if is_shown:
                print(f"{damage}: {ending}\n{result.log}", file=sys.stderr)
    return outcomes


@dataclass
class Result:
    """How a case ended, what it read, and its standard error."""

    ending: str
    content: str
    log: str


def run_case(reader: Reader, case: Path) -> Result:
    """Read the files of a case in its own process."""
    log_path, content_path = case.with_name("log"), case.with_name("content")
    content_path.write_text("")
    process = os.fork()
    if not process:
        os._exit(_read(reader, case, log_path, content_path))
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        ending = "no end" if number == signal.SIGALRM else f"signal {number}"
    else:
        ending = {0: "read", _REFUSED: "refused"}.get(os.WEXITSTATUS(status), "traceback")
    content = content_path.read_text(errors="surrogateescape")
    return Result(ending, content, log_path.read_text(errors="replace"))


def _read(reader: Reader, case: Path, log: Path, content: Path) -> int:
    """Read the files of a case, in its process; return the exit code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_SECONDS if PROCESSES not in os.environ else 0)  # else `tfm` has a time limit
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    for stream, path in ((0, os.devnull), (1, f"{log}.out"), (2, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(case)
    try:
        content.write_text(reader.read(case), errors="surrogateescape")
    except Refused:
        return _REFUSED
    except TfmError as error:
        sys.stderr.write(f"tfm: {error}\n")
        return _REFUSED
    except BaseException:
        traceback.print_exc()
        return _CRASHED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _damage(reader: Reader, case: Path, generator: random.Random) -> tuple[str, bool]:
    """Damage a case; return a description, and whether a checksum covers the damage."""
    name = generator.choice(list(reader.files))
    path = case / name
    if generator.random() < _REPLACED_FILE_RATE and reader.may_be_no_file:
        return f"{name} is {replace_file(generator, path, pipes=reader.may_be_pipe)}", False
    structured = reader.files[name]
    if structured and (generator.random() < 0.5 or not reader.has_bytes):
        damage = generator.choice(structured)
        pack, unpack = PACKERS.get(path.suffix, (bytes, bytes))
        path.write_bytes(pack(damage(generator, unpack(path.read_bytes()))))
        return f"{name}: {damage.__name__}", reader.is_sealed
    damage = generator.choice((*BYTES, insert_snippet))
    path.write_bytes(damage(generator, path.read_bytes()))
    return f"{name}: {damage.__name__}", reader.is_checked


def _judge(result: Result, expected: Result, *, is_covered: bool) -> str:
    """Describe how a case ended: by one of _GOOD, or by a fault."""
    lines = [line for line in result.log.splitlines() if line]
    while lines and lines[-1].startswith(
        DETAIL.strip("\n")
    ):  # of several mistakes, each has a line
        lines.pop()
    if result.ending == "refused":
        is_one_line = lines and [line.startswith("tfm: ") for line in lines].count(True) == 1
        return _GOOD[0] if is_one_line and lines[-1].startswith("tfm: ") else "not one line"
    if result.ending != "read":
        last = lines[-1][:150] if lines else ""
        return f"{result.ending} {last}"
    if result.content == expected.content:
        return "read as before"
    if is_covered and "warning: " not in result.log:
        return "damage was read in spite of a checksum"
    return "read as something else"


def _copy(valid: Path, case: Path) -> Path:
    shutil.rmtree(case, ignore_errors=True)
    return Path(shutil.copytree(valid, case))


def _print_row(name: str, outcomes: Outcomes) -> None:
    counts = outcomes.counts
    figures = (sum(counts.values()), *(counts[each] for each in _GOOD), len(outcomes.faults))
    cells = [*(f"{figure:,}" for figure in figures), f"{outcomes.slowest[0]:.1f}"]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
