"""How the failure of one of many processes reaches the user: once, and by its cause.

A process leaves its failure in the file that its launcher names, in the format of torch's elastic:
torchrun shows it, and tfm's own launcher tells causes from consequences here.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tfm.errors import TfmError

if TYPE_CHECKING:  # the command line reports failures without loading torch
    from torch.distributed.elastic.multiprocessing import ProcessFailure

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
RESUME = "the same command goes on from the last checkpoint"
# Elastic's agent gives a process that it ends more time than this before it kills it.
_PATIENCE_SECONDS = 20


class FailedProcessError(TfmError):
    """A process of the run that failed, in its own words or those of its launcher."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def has_launcher() -> bool:
    """Return whether torchrun, or tfm as torchrun does, watches this process."""
    return bool(os.environ.get(_ERROR_FILE))


def report_failure(
    message: str, *, exit_code: int = 1, is_consequence: bool = False, trace: str = ""
) -> bool:
    """Leave a failure of this process for its launcher; only the first one counts.

    Args:
        message: What went wrong.
        exit_code: What this process will end with, unless it is killed before.
        is_consequence: Whether it fails only because another process has failed.
        trace: The traceback of a bug.

    Returns:
        Whether the launcher will print it; if not, the caller has to.
    """
    if not has_launcher():
        return False
    facts = {
        "timestamp": str(int(time.time())),
        "exit_code": exit_code,
        "is_consequence": is_consequence,
        **({"py_callstack": trace} if trace else {}),  # torchrun prints it even if it is empty
    }
    path = Path(os.environ[_ERROR_FILE])
    partial = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    try:
        if not path.exists():
            # This process may be killed at any moment, and must not leave half a file.
            text = json.dumps({"message": {"message": message, "extraInfo": facts}})
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError:  # the launcher is gone, or the disk is full
        return False
    return True


def end_process(message: str | None) -> NoReturn:
    """End this process at once, whatever its main thread is stuck in.

    Args:
        message: What went wrong; None if another process reports it.
    """
    text = message or "another process has ended the run"
    if not report_failure(text, is_consequence=message is None) and message is not None:
        # Past Python's streams, whose locks the main thread may hold for ever.
        with contextlib.suppress(OSError):
            os.write(2, f"tfm: {message}\n".encode(errors="replace"))
    os._exit(1)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a process of a run failed.

    Attributes:
        rank: Its rank.
        pid: Its process id on its machine.
        exit_code: Below 0, the signal that killed it before it could report anything.
        timestamp: When, in whole seconds.
        message: What it reported itself; empty if nothing.
        is_consequence: Whether it reported that it failed only because another did.
        trace: The traceback of a bug.
    """

    rank: int
    pid: int
    exit_code: int
    timestamp: int
    message: str = ""
    is_consequence: bool = False
    trace: str = ""

    @classmethod
    def of(cls, rank: int, ended: "ProcessFailure") -> "Failure":
        """Return what elastic knows of a process, and what it reported itself."""
        report = ended.error_file_data.get("message")
        if not isinstance(report, Mapping):
            report = {}
        facts = report.get("extraInfo", {})
        return cls(
            rank=rank,
            pid=ended.pid,
            exit_code=facts.get("exit_code", ended.exitcode),
            timestamp=ended.timestamp,
            message=report.get("message", ""),
            is_consequence=facts.get("is_consequence", False),
            trace=facts.get("py_callstack", ""),
        )

    @property
    def error(self) -> FailedProcessError:
        """What the user is told."""
        name = f"rank {self.rank} (process {self.pid})"
        if self.trace:
            return FailedProcessError(f"{name} has come upon a bug: {self.message}; {RESUME}")
        if self.message:
            return FailedProcessError(self.message, exit_code=max(self.exit_code, 1))
        if self.exit_code >= 0:
            end = f"ended with exit code {self.exit_code} and said nothing"
        else:
            end = f"was killed by {_signal_name(-self.exit_code)}"
        return FailedProcessError(f"{name} {end}; {RESUME}")


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"  # hardly anyone else sends it unasked
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal without a name
        return f"signal {number}"


def cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that the others follow from, as far as one can tell.

    Args:
        failures: In the order in which the launcher saw them: after the first it ends the others.
    """
    first_at = min(failure.timestamp for failure in failures)

    def distance(failure: Failure) -> tuple[int, int, bool, int]:
        is_ended = failure.exit_code == -signal.SIGTERM and failure is not failures[0]
        is_killed = failure.exit_code == -signal.SIGKILL
        if is_ended or (is_killed and failure.timestamp - first_at >= _PATIENCE_SECONDS):
            kind = 3
        elif failure.is_consequence:
            kind = 2
        elif not failure.message and failure.exit_code > 0:
            kind = 1
        else:
            kind = 0
        return kind, failure.timestamp, bool(failure.message), failure.rank

    return min(failures, key=distance)
