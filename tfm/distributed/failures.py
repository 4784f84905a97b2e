"""How the failure of one of many processes reaches the user: once, and by its cause.

A process that a launcher watches leaves its failure in the file that the launcher names, as torch
elastic wants it: torchrun shows it as well as tfm's own launcher, which tells causes from
consequences here.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tfm.errors import TfmError

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
GO_ON = "the same command goes on from the last checkpoint"
# The launcher gives a process that it ends more time than this before it kills it.
_PATIENCE_SECONDS = 20
# Nobody but the system's guard against running out of memory uses it unasked.
_LIKELY_REASONS: Mapping[int, str] = {signal.SIGKILL: " (out of memory?)"}


class FailedProcessError(TfmError):
    """A process of the run that failed, in its own words or those of its launcher."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def has_launcher() -> bool:
    """Whether torchrun, or tfm as torchrun does, watches over this process."""
    return bool(os.environ.get(_ERROR_FILE))


def report_failure(
    message: str, *, exit_code: int = 1, is_consequence: bool = False, trace: str = ""
) -> bool:
    """Leave word with the launcher of why this process fails; the first word counts.

    Args:
        message: What went wrong.
        exit_code: What this process will end with, unless it is killed before it has ended.
        is_consequence: Whether it is only because another process has failed.
        trace: The traceback of a bug.

    Returns:
        Whether the launcher will say it; if not, the caller has to.
    """
    if not has_launcher():
        return False
    facts: dict[str, Any] = {
        "timestamp": str(int(time.time())),
        "exit_code": exit_code,
        "is_consequence": is_consequence,
    }
    if trace:
        facts["py_callstack"] = trace
    path = Path(os.environ[_ERROR_FILE])
    whole = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    try:
        if not path.exists():
            # The launcher may look at any moment, and must never see half a file.
            text = json.dumps({"message": {"message": message, "extraInfo": facts}})
            whole.write_text(text, encoding="utf-8")
            os.replace(whole, path)
    except OSError:  # the launcher is gone, or the disk is full
        return False
    return True


def end_process(message: str | None) -> NoReturn:
    """End this process at once, whatever its main thread is stuck in.

    Args:
        message: What went wrong; None if another process says it.
    """
    if message is None:
        message, is_consequence = "another process has ended the run", True
    else:
        is_consequence = False
    if not report_failure(message, is_consequence=is_consequence) and not is_consequence:
        # Past Python's streams, whose locks the main thread may hold for ever.
        with contextlib.suppress(OSError):
            os.write(2, f"tfm: {message}\n".encode(errors="replace"))
    os._exit(1)


class EndedProcess(Protocol):
    """What torch elastic knows of a process that failed."""

    pid: int
    exitcode: int
    timestamp: int
    error_file_data: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a process of a run failed.

    Attributes:
        rank: Which one.
        pid: Its number on its machine.
        exit_code: Below 0, the signal that killed it before it could say anything.
        timestamp: When, in whole seconds.
        message: What it said itself; empty if nothing.
        is_consequence: Whether it says that it failed only because another did.
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
    def of(cls, rank: int, ended: EndedProcess) -> "Failure":
        """What torch elastic knows of it, and what it left itself."""
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
            return FailedProcessError(f"{name} has come upon a bug: {self.message}; {GO_ON}")
        if self.message:
            return FailedProcessError(self.message, exit_code=max(self.exit_code, 1))
        if self.exit_code < 0:
            reason = _LIKELY_REASONS.get(-self.exit_code, "")
            return FailedProcessError(f"{name} was killed by {self.signal_name}{reason}; {GO_ON}")
        return FailedProcessError(
            f"{name} ended with exit code {self.exit_code} and said nothing; {GO_ON}"
        )

    @property
    def signal_name(self) -> str:
        """The name of the signal that killed it; empty if none did."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:  # one of the nameless for real-time use
            return f"signal {-self.exit_code}"


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others follow from, as far as one can tell.

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
