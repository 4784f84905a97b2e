"""Messages and progress bars of a stage, on stderr."""

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from typing_extensions import Buffer, override

from tfm.errors import DETAIL
from tfm.world import current_world

_PLAIN_LINE_SECONDS = 15.0
_BAR_SECONDS = 0.1
_BAR_CELLS = 6
_DEFAULT_COLUMNS = 80
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
    deadline is an estimate, which begins with "~". Narrow terminals show only the first figures.

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
        self._suffix = "" if unit == "B" else f" {unit}"  # of formatted numbers
        self._deadline = deadline
        self._shown = shown and current_world().is_first
        self._figures: Sequence[str] = ()
        self._is_plain = not sys.stderr.isatty()
        self._started = self._shown_at = time.monotonic()
        # tqdm moves the bar below the lines that are printed meanwhile.
        self._bar: Any = tqdm(
            desc=description,
            bar_format="{desc}",
            dynamic_ncols=True,
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
        now = time.monotonic()
        interval = _PLAIN_LINE_SECONDS if self._is_plain else _BAR_SECONDS
        if not self._shown or now - self._shown_at < interval:
            return
        self._shown_at = now
        if self._is_plain:
            finished = f"{self._description} {self._count()}{self._suffix}"
            say(" · ".join([finished, *self._figures]))
        else:
            self._bar.set_description_str(self._line(_num_columns()))

    def _line(self, width: int) -> str:
        """Return the text of the bar, without the last fields if the terminal is too narrow."""
        fields = [f"{self._description} {self._count()}", *self._fields()]
        while len(fields) > 1 and len(" · ".join(fields)) > width:
            fields.pop()
        return " · ".join(fields)[:width]

    def _count(self) -> str:
        """Return the number of finished units, and of all units if it is known."""
        total = self._expected_total()
        if total is None:
            return self._format(self.done)
        if total == self._total:
            return f"{self._format(self.done)}/{self._format(total)}"
        rounded = max(self.done, float(f"{total:.2g}"))
        return f"{self._format(self.done)}/~{self._format(rounded)}"

    def _fields(self) -> Iterator[str]:
        """Yield the fields after the count, the most important first."""
        yield from self._figures[:1]
        rate, total = self._rate(), self._expected_total()
        if total is None:
            yield str(self._bar.format_interval(time.monotonic() - self._started))
        elif rate:
            yield f"{self._bar.format_interval(max(0.0, total - self.done) / rate)} left"
        yield from self._figures[1:]
        yield f"{self._format(rate)}{self._suffix}/s"
        if total:
            share = min(1.0, self.done / total)
            yield f"{share:.0%} |{'█' * int(_BAR_CELLS * share):{_BAR_CELLS}}|"

    def _expected_total(self) -> float | None:
        """Return the number of units at the total or the deadline, whichever comes first."""
        rate = self._rate()
        if self._deadline is None or not rate:
            return self._total
        at_deadline = self.done + rate * max(0.0, self._deadline - time.monotonic())
        return at_deadline if self._total is None else min(self._total, at_deadline)

    def _rate(self) -> float:
        """Return the number of units per second since the start."""
        num_new, seconds = self.done - self._initial, time.monotonic() - self._started
        return num_new / seconds if seconds else 0.0

    def _format(self, number: float) -> str:
        if self._unit == "B":
            return str(self._bar.format_sizeof(number, "B", 1024))
        return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _num_columns() -> int:
    """Return the width of the terminal of stderr, without the last column, which tqdm leaves."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 0
    return (columns or _DEFAULT_COLUMNS) - 1
