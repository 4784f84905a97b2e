"""Messages and progress bars of a stage, on stderr."""

import io
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from typing_extensions import Buffer, override

from tfm.errors import DETAIL
from tfm.world import current_world

_PLAIN_LINE_SECONDS = 15.0
_BAR_SECONDS = 0.1
# Figures from here on are shown with an exponent.
_LARGE = 1e6


class _BestEffortFile(io.FileIO):
    """A file that drops what it cannot write: on a full disk, a closed pipe, a lost terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.fileno(), "wb", closefd=False)
        self._stream = stream  # which would close the file if it were not used any more

    @override
    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def best_effort(stream: TextIO) -> TextIO:
    """Return a stream to the same file that drops what it cannot write.

    It has no buffer: Python would try to write its content again with each line and at exit.
    """
    file, encoding, errors = _BestEffortFile(stream), stream.encoding, stream.errors
    return io.TextIOWrapper(file, encoding=encoding, errors=errors, write_through=True)


def printable(message: str) -> str:
    """Return a message and its details with the control characters in them escaped.

    File names and lines of text may contain some, which would change the terminal.
    """
    lines = (
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        for line in message.split(DETAIL)
    )
    return DETAIL.join(lines)


def say(message: str) -> None:
    """Print one line on stderr, above a progress bar if there is one; only rank 0 prints."""
    if current_world().is_first:
        from tqdm import tqdm  # would delay tfm --help

        tqdm.write(printable(message), file=sys.stderr)


def format_figure(value: float, *, decimals: int) -> str:
    """Return a figure with some decimals, or with an exponent if it is very large."""
    return f"{value:,.{decimals}f}" if abs(value) < _LARGE else f"{value:.1e}"


class Progress:
    """A progress bar on a terminal; elsewhere a plain line every few seconds.

    It counts to the total, or to the deadline if that comes first: then the number of units at the
    deadline is an estimate. Narrow terminals show only the first figures.

    Args:
        description: A word or two.
        total: The number of units; None if unknown.
        unit: The name of the units; "B" prints sizes with prefixes.
        initial: The number of units that are already finished.
        deadline: The `time.monotonic` at which the work ends at the latest; None if unlimited.
        shown: Whether to print anything; otherwise, it only counts.
    """

    def __init__(
        self,
        description: str,
        *,
        total: int | None,
        unit: str,
        initial: int = 0,
        deadline: float | None = None,
        shown: bool = True,
    ) -> None:
        from tqdm import tqdm  # would delay tfm --help

        self.done = self._initial = initial
        self._description = description
        self._total = total
        self._unit = unit
        self._deadline = deadline
        self._shown = shown and current_world().is_first
        self._figures: Sequence[str] = ()
        self._is_plain = not sys.stderr.isatty()
        self._started = self._shown_at = time.monotonic()
        # tqdm moves the bar below the lines that are printed meanwhile.
        self._bar: Any = tqdm(
            initial=initial,
            total=total,
            bar_format=description,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            unit_divisor=1024,
            dynamic_ncols=True,
            miniters=0,
            mininterval=_BAR_SECONDS,
            disable=self._is_plain or not self._shown,
            leave=False,
            file=sys.stderr,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, count: int = 1, figures: Sequence[str] = ()) -> None:
        """Count finished units, and show figures beside them, the most important first."""
        self.done += count
        self._figures = figures or self._figures
        if not self._is_plain:
            self._bar.total = self._expected_total()
            self._bar.bar_format = self._bar_format()
            self._bar.update(count)
        elif self._shown and time.monotonic() - self._shown_at >= _PLAIN_LINE_SECONDS:
            self._shown_at = time.monotonic()
            total = self._expected_total()
            finished = self._number(self.done)
            if total is not None:
                is_estimate = "~" * (total != self._total)
                finished += f"/{is_estimate}{self._number(total)}"
            suffix = "" if self._unit == "B" else f" {self._unit}"
            say(" · ".join([f"{self._description} {finished}{suffix}", *self._figures]))

    def _bar_format(self) -> str:
        """Return the format of the bar; tqdm cuts it at the end if the terminal is narrow."""
        count = "{n_fmt}" if self._unit == "B" else "{n:,}"
        if self._bar.total is None:
            fields = [count, *self._figures[:1], "{elapsed}", *self._figures[1:], "{rate_fmt}"]
        else:
            count += "/~" if self._bar.total != self._total else "/"
            count += "{total_fmt}" if self._unit == "B" else "{total:,}"
            fields = [count, *self._figures[:1], "{remaining} left", *self._figures[1:]]
            fields += ["{rate_fmt}", "{percentage:.0f}% |{bar:6}|"]
        return f"{self._description} " + " · ".join(fields)

    def _expected_total(self) -> int | None:
        """Return the number of units at the total or the deadline, whichever comes first."""
        now = time.monotonic()
        num_new, seconds = self.done - self._initial, now - self._started
        if self._deadline is None or not num_new or not seconds:
            return self._total
        at_deadline = self.done + num_new / seconds * max(0.0, self._deadline - now)
        estimate = max(self.done, round(float(f"{at_deadline:.2g}")))
        return estimate if self._total is None else min(self._total, estimate)

    def _number(self, number: int) -> str:
        is_size = self._unit == "B"
        return str(self._bar.format_sizeof(number, "B", 1024)) if is_size else f"{number:,}"
