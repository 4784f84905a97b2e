"""What a person sees while a stage works: lines and live bars on stderr."""

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from tfm.world import World

_PLAIN_LINE_SECONDS = 15.0


def say(message: str) -> None:
    """Print one line on stderr, above a live bar if there is one; of many processes, one speaks."""
    if World.from_environment().is_first:
        tqdm.write(message, file=sys.stderr)


class Progress:
    """A live bar on a terminal; elsewhere a plain line every few seconds.

    Args:
        description: What is going on, in a word or two.
        total: How many units there are, where that is known.
        unit: Name of one unit; "B" prints sizes with prefixes.
        initial: Units already done when the bar starts.
    """

    def __init__(self, description: str, *, total: int | None, unit: str, initial: int = 0) -> None:
        self._description = description
        self._unit = unit
        self._plain = not sys.stderr.isatty()
        self._started = self._last_line = time.monotonic()
        self._bar: tqdm[Any] = tqdm(
            total=total,
            desc=description,
            unit=unit,
            unit_scale=unit == "B",
            unit_divisor=1024 if unit == "B" else 1000,
            initial=initial,
            bar_format="{l_bar}{bar:10}{r_bar}",  # short, so that the figures have room
            disable=self._plain or not World.from_environment().is_first,
            dynamic_ncols=True,
            leave=False,
            file=sys.stderr,
        )
        self.done = initial
        self._figures = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def update(self, count: int = 1, figures: str = "") -> None:
        """Count finished units.

        Args:
            count: Units finished since the last call.
            figures: Text to show beside the bar, such as the current loss.
        """
        self.done += count
        self._figures = figures or self._figures
        if not self._plain:
            if figures:
                self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last_line >= _PLAIN_LINE_SECONDS:
            self._last_line = time.monotonic()
            of_total = f"/{self._bar.total:,}" if self._bar.total else ""
            figures = f" · {self._figures}" if self._figures else ""
            say(f"{self._description} {self.done:,}{of_total} {self._unit}{figures}")
