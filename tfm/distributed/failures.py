"""Report the failure of one of many processes to the user: once, and by its root cause.

A process writes its failure to a file in the format of torch elastic: torchrun shows it, and tfm's
own launcher finds the root cause of several failures here.
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
RESUME = "run the same command again to resume from the last checkpoint"
# Elastic sends SIGTERM and, later than this, SIGKILL to a process that does not end.
_MIN_SECONDS_TO_KILL = 20


class FailedProcessError(TfmError):
    """The failure of a process of the run, as it or its launcher describes it."""


def has_launcher() -> bool:
    """Return whether torchrun or tfm's own launcher started this process."""
    return bool(os.environ.get(_ERROR_FILE))


def report_failure(
    message: str, *, exit_code: int = 1, is_consequence: bool = False, trace: str = ""
) -> bool:
    """Report a failure of this process to its launcher; only the first report counts.

    Return whether the launcher will print the message; if not, the caller has to. A failure is a
    consequence if another process has failed before; only a bug has a trace.
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
    except OSError:  # the launcher has ended, or the disk is full
        return False
    return True


def end_process(message: str | None, *, exit_code: int = 1) -> NoReturn:
    """End this process at once, even if its main thread is stuck.

    Without a message, another process reports what went wrong.
    """
    text = message or "another process has ended the run"
    is_reported = report_failure(text, exit_code=exit_code, is_consequence=message is None)
    if not is_reported and message is not None:
        # The main thread may hold the locks of Python's streams forever.
        with contextlib.suppress(OSError):
            os.write(2, f"tfm: {message}\n".encode(errors="replace"))
    os._exit(exit_code)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one process of a run."""

    rank: int
    pid: int
    exit_code: int  # -N if signal N killed the process before it reported an exit code
    timestamp: int  # in whole seconds
    message: str = ""  # the process's own report
    is_consequence: bool = False  # it reported that it failed because another process did
    trace: str = ""  # of a bug

    @classmethod
    def from_elastic(cls, rank: int, failure: "ProcessFailure") -> "Failure":
        """Combine elastic's description of a failed process with the process's own report."""
        report = failure.error_file_data.get("message")
        if not isinstance(report, Mapping):
            report = {}
        facts = report.get("extraInfo", {})
        return cls(
            rank=rank,
            pid=failure.pid,
            exit_code=facts.get("exit_code", failure.exitcode),
            timestamp=failure.timestamp,
            message=report.get("message", ""),
            is_consequence=facts.get("is_consequence", False),
            trace=facts.get("py_callstack", ""),
        )

    @property
    def error(self) -> FailedProcessError:
        """The error to show to the user."""
        if self.message and not self.trace:
            return FailedProcessError(self.message, exit_code=max(self.exit_code, 1))
        if self.trace:
            problem = f"hit a bug: {self.message}"
        elif self.exit_code >= 0:
            problem = f"exited with code {self.exit_code} without an error message"
        else:
            problem = f"was killed by {_signal_name(-self.exit_code)}"
        return FailedProcessError(f"rank {self.rank} (process {self.pid}) {problem}; {RESUME}")


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"  # most often sent by the kernel's out-of-memory killer
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal without a name
        return f"signal {number}"


def root_cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that most likely caused the others.

    They are in the order in which the launcher saw them; it ends all processes after the first.
    """
    first_at = min(failure.timestamp for failure in failures)

    def sort_key(failure: Failure) -> tuple[int, int, bool, int]:
        is_terminated = failure.exit_code == -signal.SIGTERM and failure is not failures[0]
        is_killed = failure.exit_code == -signal.SIGKILL
        if is_terminated or (is_killed and failure.timestamp - first_at >= _MIN_SECONDS_TO_KILL):
            kind = 3  # ended by the launcher
        elif failure.is_consequence:
            kind = 2
        elif not failure.message and failure.exit_code > 0:
            kind = 1  # not known: exited without a report
        else:
            kind = 0
        return kind, failure.timestamp, bool(failure.message), failure.rank

    return min(failures, key=sort_key)
