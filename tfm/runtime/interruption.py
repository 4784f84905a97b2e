"""Signals that ask a long stage to stop, answered where it is safe to."""

import signal
from types import FrameType, TracebackType
from typing import Any

from tfm.errors import TfmError


class InterruptedRunError(TfmError):
    """A run that was asked to stop and has saved where it was."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequests:
    """While it is open, Ctrl-C and SIGTERM only ask; a second Ctrl-C stops at once."""

    _EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 0}  # noqa: RUF012

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequests":
        for number in self._EXIT_CODES:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int | None:
        """The exit code that the signal stands for; None if there was none."""
        return None if self._received is None else self._EXIT_CODES[signal.Signals(self._received)]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number
