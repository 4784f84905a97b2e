"""Messages and progress bars of a command, on stderr, and what its result prints."""

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO

from typing_extensions import Buffer, override

from tfm.errors import DETAIL
from tfm.machine.world import current_world
from tfm.table import Table, fold

if TYPE_CHECKING:
    from rich.text import Text

_PLAIN_LINE_SECONDS = 15.0
_BAR_SECONDS = 0.1
_MIN_BAR_COLUMNS, _NUM_BEFORE_BAR = 8, 4  # more than 4 fields are only shown beside a bar
_SEPARATOR = " · "
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


def shown_on(stream: TextIO, message: str) -> str:
    """Return a printable message; on a terminal, its lines end between words."""
    message = printable(message)
    if not _can_draw(stream):
        return message
    columns = shutil.get_terminal_size().columns - len(DETAIL)
    return DETAIL.join(line for part in message.split(DETAIL) for line in fold(part, columns))


def say(message: str) -> None:
    """Print one line on stderr, above a progress bar if there is one; only rank 0 prints."""
    if current_world().is_first:
        from tqdm import tqdm  # would delay tfm --help

        tqdm.write(shown_on(sys.stderr, message), file=sys.stderr)


class Result:
    """What a command returns, and how the command line prints it."""

    passed: bool = True  # or else the exit code is 1

    def summary(self) -> Iterable[str]:
        """Return the lines to print on stderr."""
        return ()

    def notes(self) -> Iterable[str]:
        """Return the lines to print on stderr after those on stdout."""
        return ()

    def lines(self, columns: int | None) -> "Iterable[str | Text | Table]":
        """Return what to print on stdout, for a terminal of some columns, or a file."""
        return ()

    def record(self) -> Any:
        """Return what --json prints."""
        return asdict(self)  # type: ignore[call-overload]

    def _repr_html_(self) -> str:
        """Return what is printed, or else the fields, in HTML: notebooks show it."""
        lines = [*self.lines(None)] or [Table([[k, str(v)] for k, v in self.record().items()])]
        texts = (
            each.text("html") if isinstance(each, Table) else escape(str(each)) for each in lines
        )
        return "".join(f"<div>{text}</div>" for text in texts)


def format_number(value: float, *, decimals: int) -> str:
    """Return a number with some decimals, or with an exponent if it is very large."""
    return f"{value:,.{decimals}f}" if abs(value) < _LARGE else f"{value:.1e}"


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit that gives a number of at least 2."""
    units = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, size = next((each for each in units if seconds >= 2 * each[1]), units[-1])
    number = seconds / size
    return f"{number:,.0f} {unit}" if number >= 99.5 else f"{number:.2g} {unit}"


def _escaped(text: str) -> str:
    """Escape the braces of a text for tqdm's `bar_format`."""
    return text.replace("{", "{{").replace("}", "}}")


def _can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal of known size that can go back in a line."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.get_terminal_size(stream.fileno()).lines > 0
    except OSError:  # it has no descriptor
        return True


class Progress:
    """A progress bar on a terminal; elsewhere a plain line every few seconds.

    It counts to the total, or to the deadline if that comes first: then the number of units at the
    deadline is an estimate. A narrow terminal shows only the first statistics.

    Args:
        description: A word or two.
        total: The number of units; None if unknown.
        unit: The name of the units; "B" prints sizes with prefixes.
        initial: The number of units that are already finished.
        start: What a terminal shows until the first `update`.
        deadline: The latest `time.monotonic` of the end of the work; None if unlimited.
        shown: Whether to print anything; otherwise, it only counts.
    """

    def __init__(
        self,
        description: str,
        *,
        total: int | None,
        unit: str,
        initial: int = 0,
        start: str = "",
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
        self._statistics: Sequence[str] = ()
        self._is_plain = not _can_draw(sys.stderr)
        self._started = self._shown_at = time.monotonic()
        # tqdm moves the bar below the lines that are printed meanwhile.
        self._bar: Any = tqdm(
            initial=initial,
            total=total,
            bar_format=_escaped(_SEPARATOR.join(filter(None, [self._line(total), start]))),
            dynamic_ncols=True,
            miniters=0,
            mininterval=0,
            disable=self._is_plain or not self._shown,
            leave=False,
            file=sys.stderr,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, count: int = 1, statistics: Sequence[str] = ()) -> None:
        """Count finished units, and show statistics beside them, the most important first."""
        self.done += count
        self._statistics = statistics or self._statistics
        now = time.monotonic()
        interval = _PLAIN_LINE_SECONDS if self._is_plain else _BAR_SECONDS
        if not self._shown or now - self._shown_at < interval:
            return
        self._shown_at = now
        if self._is_plain:
            say(self._line(self._expected_total()))
            return
        self._bar.total = self._expected_total()
        self._bar.bar_format = self._bar_format()
        self._bar.update(self.done - self._bar.n)

    def _line(self, total: int | None) -> str:
        """Return the count of units and the statistics, without speed and bar."""
        unit = "" if self._unit == "B" else f" {self._unit}"
        return _SEPARATOR.join(
            [f"{self._description} {self._count(total)}{unit}", *self._statistics]
        )

    def _bar_format(self) -> str:
        """Return whole fields, the most important first, and a bar in the rest of the line."""
        from rich.cells import cell_len  # would delay tfm --help

        total, seconds = self._bar.total, time.monotonic() - self._started
        rate = (self.done - self._initial) / seconds
        time_left = total and rate and f"{format_duration((total - self.done) / rate)} left"
        # The most important come first.
        fields = [
            f"{self._description} {self._count(total)}",
            *self._statistics[:1],
            time_left or format_duration(seconds),
            *self._statistics[1:],
            self._speed(rate),
        ]
        columns = self._bar.format_dict["ncols"] or shutil.get_terminal_size().columns
        ends = [*accumulate(len(_SEPARATOR) + cell_len(field) for field in fields)]
        bar = f"{_SEPARATOR}{self.done / total:.0%} |{{bar}}|" if total else ""
        room = columns + len(_SEPARATOR) - len(bar.format(bar=" " * _MIN_BAR_COLUMNS))
        if bar and ends[:_NUM_BEFORE_BAR][-1] > room:
            bar, room = "", columns + len(_SEPARATOR)
        shown = _SEPARATOR.join(fields[: max(1, sum(end <= room for end in ends))])
        return _escaped(shown) + bar

    def _expected_total(self) -> int | None:
        """Return the final count to show: the total, or an estimate if the deadline comes first."""
        now = time.monotonic()
        num_new, seconds = self.done - self._initial, now - self._started
        if self._deadline is None or not num_new or not seconds:
            return self._total
        at_deadline = self.done + num_new / seconds * max(0.0, self._deadline - now)
        estimate = max(self.done, round(float(f"{at_deadline:.2g}")))
        return estimate if self._total is None else min(self._total, estimate)

    def _count(self, total: int | None) -> str:
        """Return the number of finished units, and of all units if known."""
        if total is None:
            return self._number(self.done)
        is_estimate = "~" * (total != self._total)
        return f"{self._number(self.done)}/{is_estimate}{self._number(total)}"

    def _speed(self, rate: float) -> str:
        if self._unit == "B":
            return f"{self._number(rate)}/s"
        return f"{rate:,.0f} {self._unit}/s" if rate >= 99.5 else f"{rate:.3g} {self._unit}/s"

    def _number(self, number: float) -> str:
        if self._unit != "B":
            return f"{number:,}"
        from tqdm import tqdm

        return str(tqdm.format_sizeof(number, "B", 1024))
