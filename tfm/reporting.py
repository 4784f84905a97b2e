"""Messages and progress bars of a stage, on stderr."""

import io
import sys
import time
from typing import Any, TextIO

from typing_extensions import Buffer, override

from tfm.errors import DETAIL
from tfm.world import current_world

_PLAIN_LINE_SECONDS = 15.0


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


class Progress:
    """A progress bar on a terminal; elsewhere a plain line every few seconds.

    The description has a word or two; the unit "B" prints sizes with prefixes. If not `shown`, it
    only counts.
    """

    def __init__(
        self,
        description: str,
        *,
        total: int | None,
        unit: str,
        initial: int = 0,
        shown: bool = True,
    ) -> None:
        from tqdm import tqdm  # would delay tfm --help

        self._description = description
        self._unit = unit
        self._shown = shown
        self._is_plain = not sys.stderr.isatty()
        self._last_line_at = time.monotonic()
        # A short bar leaves room for the figures; narrow terminals cut off the end.
        time_shown = "{remaining} left" if total else "{elapsed}"
        bar_format = "{l_bar}{bar:6}| {n_fmt}/{total_fmt} [" + time_shown + "{postfix}, {rate_fmt}]"
        self._bar: Any = tqdm(
            total=total,
            desc=description,
            unit=unit,
            unit_scale=unit == "B",
            unit_divisor=1024 if unit == "B" else 1000,
            initial=initial,
            bar_format=bar_format,
            disable=not shown or self._is_plain or not current_world().is_first,
            dynamic_ncols=True,
            leave=False,
            file=sys.stderr,
        )
        self.done = initial
        self._figures = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, count: int = 1, figures: str = "") -> None:
        """Count finished units, and show figures beside the bar, such as the current loss."""
        self.done += count
        self._figures = figures or self._figures
        if not self._is_plain:
            if figures:
                self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(count)
        elif self._shown and time.monotonic() - self._last_line_at >= _PLAIN_LINE_SECONDS:
            self._last_line_at = time.monotonic()
            of_total = f"/{self._bar.total:,}" if self._bar.total else ""
            figures = f" · {self._figures}" if self._figures else ""
            say(f"{self._description} {self.done:,}{of_total} {self._unit}{figures}")
