"""The parts of a chain: segments of text, the steps around their search, and outputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from tfm.text.units import Span


class RequiredText(NamedTuple):
    """Texts, one of which an output must contain, and their forms at the start of a sentence."""

    texts: tuple[str, ...]
    starts: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """A unit of search: a line of a text, or a part that a step has made of it.

    Attributes:
        number: Its number, for messages and the random seeds of sampling.
        source: Plain text.
        given: A forced prefix, or the target to score; None without either.
        unit: The noun for messages about `number`, such as "line".
        required: What the output must contain, if that is possible; only for beam search.
    """

    number: int
    source: str
    given: str | None = None
    unit: str = "line"
    required: tuple[RequiredText, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Output:
    """A translation that a search found, or a given target, with its probability.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability, which ranks translations.
        log_prob: Log probability in nats, EOS included.
        pieces: The subword pieces of the text, and EOS; none if an empty line was not searched.
        piece_log_probs: Log probability of each piece of a given target given the previous ones, in
            nats; None for a translation.
        proven: Whether exact search proved that no text scores better; None for other searches.
        confidence: Expected chrF, from 0 to 1, of a calibrated model; otherwise, and for samples
            and ensembles, None.
        utility: Mean similarity to all candidates, such as chrF, if it was chosen by that (`mbr`).
        alignment: Links of source and target words, counted from 0, if they were requested.
        missing_terms: The terms of a glossary, source and target, that should be in the text, but
            are not; None if there are none.
        repeated: The part that it repeats again and again, though its source does not; None if
            there is none.
        kept: Where text that was copied is in the source and in the text, by characters.
        parts: The source and the output of each part of the text, if it was translated in parts.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...] = ()
    piece_log_probs: tuple[float, ...] | None = None
    proven: bool | None = None
    confidence: float | None = None
    utility: float | None = None
    alignment: tuple[tuple[int, int], ...] | None = None
    missing_terms: tuple[tuple[str, str], ...] | None = None
    repeated: str | None = None
    kept: "tuple[tuple[Span, Span], ...]" = ()
    parts: tuple[tuple[str, "Output"], ...] = ()


class Step(ABC):
    """Work around a search: `before` prepares each unit of text, `after` completes outputs.

    `before` runs ahead of the search, perhaps in another thread.
    """

    def load(self) -> Self:
        """Read the files that `after` needs, and return the step; called before units are read."""
        return self

    def before(self, unit: Segment) -> tuple[Sequence[Segment], Any]:
        """Return the segments to search, and the state for `after`; by default, the unit itself."""
        return [unit], unit

    @abstractmethod
    def after(self, states: Sequence[Any], outputs: list[list[Output]]) -> list[list[Output]]:
        """Return the outputs of units, best first.

        Args:
            states: The state that `before` returned for each unit.
            outputs: The outputs of each of their segments, best first.
        """

    def summary(self, since: str) -> str | None:
        """Return a message for the end, which closes with the words `since`; None by default."""
        return None


class UnitAligner(Protocol):
    """Aligns the units of sources and translations."""

    def hold(self) -> Any:
        """Read from disk all that is needed to align."""

    def align_units(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> "list[list[tuple[Span, Span]]]":
        """Return the linked units of each pair, by their spans of characters."""
