"""Signals that ask a long stage to stop; the stage stops where it is safe to."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from tfm.distributed.failures import has_launcher
from tfm.errors import TfmError

# A process that was asked to stop is killed if it has not saved and ended within this time.
SAVING_SECONDS = 120.0
_POLL_SECONDS = 1.0


class InterruptedRunError(TfmError):
    """A run that was stopped by a signal."""


class StopRequests:
    """A context in which signals to stop are only recorded; a second Ctrl-C stops at once.

    The signals are Ctrl-C, SIGTERM, SIGUSR1 (batch systems send it before they end a job) and
    SIGHUP (a closed terminal). A signal that was ignored before, as under nohup, stays ignored.

    Attributes:
        received: The first signal that came; None if there was none.
    """

    EXIT_CODES: Mapping[int, int] = {
        signal.SIGINT: 130,
        signal.SIGTERM: 0,
        signal.SIGUSR1: 0,
        signal.SIGHUP: 0,
    }

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        for number in self.EXIT_CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        # The launcher may send the same signal again, which must not kill a process as it ends.
        is_ending = self.received is not None and has_launcher()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)

    @property
    def exit_code(self) -> int | None:
        """The exit code for the signal that came; None if there was none."""
        return None if self.received is None else self.EXIT_CODES[self.received]

    def _record(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _replace_lost_terminal()
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number


def stop_with_launcher() -> None:
    """Stop this process as if by SIGTERM if its launcher dies: nothing else would end it."""
    if has_launcher():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _replace_lost_terminal() -> None:
    """Redirect output to /dev/null if its terminal is closed: writing there fails."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:  # noqa: PERF203 - only two descriptors
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
