"""The step that keeps protected text out of the search, and puts it into translations."""

import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from tfm.reporting import say
from tfm.text.tags import split_tag
from tfm.translation.steps import Output, Segment, Step, UnitAligner

if TYPE_CHECKING:
    from tfm.features.protect.cuts import Protected
    from tfm.text.units import Span

# What any protected text has; the modules that find and place it are only imported for it.
_HINT = re.compile(r"[{}<\\]|\[\[|[%@#]\S|[$!&*_][\w(!|]|\w[./](?:[^\W\d]|7z)|[./~]/")
_SYMBOLS = ("So", "Sm", "Sk")  # categories of Unicode
_KEYCAP = "\u20e3"
# A placeholder with text in it, whose forms depend on a number or another value.
_MESSAGE = re.compile(
    r"\{\s*(?:[\w.-]+\s*,\s*(?:plural|select|selectordinal|choice)\b|[-$A-Z][^{}]*->)"
)


class Protect(Step):
    """Takes protected text out of sources, and puts it into their translations.

    Its places are found by alignment. A source with nothing else to translate is not searched, but
    copied.

    Args:
        patterns: Regular expressions of the user for further protected text.
        tags: Returns the tags of the model, when needed; they are not protected at the start.
        aligner: Aligns sources and translations; without it, protected text keeps its share of a
            translation.
        programs: Programs whose placeholders are protected even if they could be ordinary text.
        lacks: Returns whether the vocabulary lacks symbols, which are protected then.
        notify: Receives warnings of messages with text that is not translated.
    """

    def __init__(
        self,
        patterns: Sequence[str] = (),
        tags: Callable[[], Collection[str]] = tuple,
        aligner: UnitAligner | None = None,
        *,
        programs: Collection[str] = (),
        lacks: Callable[[str], bool] | None = None,
        notify: Callable[[str], None] = say,
    ) -> None:
        self._patterns, self._tags, self._aligner = tuple(patterns), tags, aligner
        self._lacks, self._notify = lacks, notify
        self._programs = frozenset(map(str.lower, programs))

    @override
    def load(self) -> Self:
        if self._aligner is not None:
            self._aligner.hold()
        return self

    def spans(self, text: str, name: str) -> "list[Span]":
        """Return the protected spans of a text, which `name` names in messages."""
        lacks = self._lacks if any(map(_is_symbol, {*text})) else None
        if not (self._patterns or self._programs or lacks or _HINT.search(text)):
            return []
        from tfm.features.protect.spans import protected_spans

        spans = protected_spans(
            text, self._patterns, name=name, programs=self._programs, lacks=lacks
        )
        start = self._start(text)
        return [span for span in spans if span[0] >= start]

    def _start(self, text: str) -> int:
        """Return the end of the tag before a text."""
        tag, _ = split_tag(text, self._tags())
        return text.find(tag) + len(tag)

    @override
    def before(self, unit: Segment) -> tuple[Sequence[Segment], "Protected | Output | None"]:
        name = f"{unit.unit} {unit.number:,}"
        spans = self.spans(unit.source, name)
        if not spans:
            return [unit], None
        for span in spans:
            if message := _MESSAGE.search(unit.source[slice(*span)]):
                self._notify(
                    f"warning: {name}: the text in {message[0]} …}} is copied, not translated: "
                    "put it on a separate line to have it translated"
                )
        from tfm.features.protect.cuts import Protected, copied

        start = self._start(unit.source)
        protected = Protected.of(unit, spans, start=start)
        if protected is None:
            return [], copied(unit.source, spans, start=start)
        return [protected.segment], protected

    @override
    def after(
        self, states: "Sequence[Protected | Output | None]", outputs: list[list[Output]]
    ) -> list[list[Output]]:
        remaining = iter(outputs)
        found = [[each] if isinstance(each, Output) else next(remaining) for each in states]
        pairs = [
            (state, output)
            for state, n_best in zip(states, found, strict=True)
            if state is not None and not isinstance(state, Output)
            for output in n_best
        ]
        unplaced = [(s.segment.source, each.text) for s, each in pairs if s.needs_links]
        links = iter(self._links(unplaced))
        restored = (s.restored(each, next(links) if s.needs_links else ()) for s, each in pairs)
        return [
            n_best
            if state is None or isinstance(state, Output)
            else list(islice(restored, len(n_best)))
            for state, n_best in zip(states, found, strict=True)
        ]

    def _links(self, pairs: Sequence[tuple[str, str]]) -> "Sequence[Sequence[tuple[Span, Span]]]":
        """Return the linked units of each source and translation; none without an aligner."""
        if not pairs or self._aligner is None:
            return [[] for _ in pairs]
        return self._aligner.align_units(*zip(*pairs, strict=True))


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character) in _SYMBOLS or character == _KEYCAP
