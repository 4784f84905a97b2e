"""Signals that ask a long stage to stop, answered where it is safe to."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

from tfm.distributed.failures import has_launcher
from tfm.errors import TfmError

# How long a process that is asked to stop may take for it before it is killed.
SAVING_SECONDS = 120.0
_POLL_SECONDS = 1.0


class InterruptedRunError(TfmError):
    """A run that was asked to stop and has saved where it was."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequests:
    """While it is open, signals to stop only ask; a second Ctrl-C stops at once.

    They are Ctrl-C, SIGTERM, SIGUSR1, with which batch systems warn before they end a job, and
    SIGHUP of a terminal that is closed. One that is ignored from the start, as nohup does with
    SIGHUP, stays so.
    """

    EXIT_CODES: Mapping[int, int] = {
        signal.SIGINT: 130,
        signal.SIGTERM: 0,
        signal.SIGUSR1: 0,
        signal.SIGHUP: 0,
    }

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        for number in self.EXIT_CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A process that is about to end takes no harm from the same signal by way of its launcher.
        is_ending = self._received is not None and has_launcher()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)

    @property
    def received(self) -> int | None:
        """The first signal that came; None if there was none."""
        return self._received

    @property
    def exit_code(self) -> int | None:
        """The exit code that the signal stands for; None if there was none."""
        return None if self._received is None else self.EXIT_CODES[self._received]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_lost_terminal()
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = self._received or number


def stop_with_launcher() -> None:
    """Stop as if by SIGTERM if the launcher of this process dies: nobody else would end it."""
    if has_launcher():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _leave_lost_terminal() -> None:
    """Write nowhere rather than to a terminal that is gone: that would fail the run."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:  # noqa: PERF203 - two of them
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
