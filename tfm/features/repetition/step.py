"""The step that finds translations that repeat themselves, such as "gergergerger"."""

import re
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from tfm.config import SearchConfig
from tfm.translation.steps import Output, Segment, Step

_MAX_SHOWN = 10  # numbers of lines in a message
_BETWEEN = r"[\s!-/:-@،、，。]{0,2}"
# A part that begins with a letter, four times in a row; three times if it is long.
_REPEATED = re.compile(
    rf"(?=[^\W\d_])(?:(?P<short>.{{2,40}}?)(?:{_BETWEEN}(?P=short)){{3}}"
    rf"|(?P<long>.{{12,80}}?)(?:{_BETWEEN}(?P=long)){{2}})"
)
_REPEATED_IN_SOURCE = re.compile(rf"(?=[^\W\d_])(.{{1,80}}?)(?:{_BETWEEN}\1){{2}}")


class Repetition(Step):
    """Marks translations that repeat a part again and again, unless the source does so, too.

    If the search avoids repetition, it returns its whole beam. Then outputs that repeat nothing
    come first, and `n_best` are kept.
    """

    def __init__(self, search: SearchConfig) -> None:
        self._search = search
        self._count, self._unit = 0, ""
        self._first: list[str] = []  # numbers

    @override
    def after(self, states: Sequence[Segment], outputs: list[list[Output]]) -> list[list[Output]]:
        return [self._marked(*each) for each in zip(states, outputs, strict=True)]

    def _marked(self, unit: Segment, n_best: Sequence[Output]) -> list[Output]:
        parts = [repeated_part(each.text, unit.source) for each in n_best]
        marked = [
            each if part is None else replace(each, repeated=part)
            for each, part in zip(n_best, parts, strict=True)
        ]
        if self._search.no_repetition:
            marked = sorted(marked, key=lambda each: each.repeated is not None)[
                : self._search.n_best
            ]
        if marked[0].repeated is not None:
            self._count, self._unit = self._count + 1, unit.unit
            if self._count <= _MAX_SHOWN:
                self._first.append(f"{unit.number:,}")
        return marked

    @override
    def summary(self, since: str) -> str | None:
        if not self._count:
            return None
        what = (
            "a translation repeats" if self._count == 1 else f"{self._count:,} translations repeat"
        )
        places = f"{self._unit}{'s' * (self._count > 1)} {'; '.join(self._first)}"
        more = "; …" * (self._count > _MAX_SHOWN)
        flag = "" if self._search.no_repetition else ": --no-repetition chooses others of the beam"
        return f"{what} the same part again and again{since}, in {places}{more}{flag}"


def repeated_part(text: str, source: str) -> str | None:
    """Return what a translation repeats; None if it repeats nothing, or if its source does."""
    found = _REPEATED.search(text)
    if found is None or _REPEATED_IN_SOURCE.search(source):
        return None
    return found["long"] or found["short"]
