"""Translations and scored targets, and what computes them."""

from dataclasses import dataclass
from typing import Literal, Protocol

from tfm.config import SearchConfig
from tfm.inference.batches import BatchLimits, SentenceBatch
from tfm.search.active import Hypothesis
from tfm.search.forced import ForcedOutput


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability, which ranks translations.
        log_prob: Log probability in nats.
        proven: Whether exact search proved that no text scores better; None for other searches.
        confidence: Expected chrF, from 0 to 1, of a calibrated model; otherwise, and for samples,
            ensembles and shortlists, None.
        utility: Mean chrF or BLEU to all candidates, if it was chosen by that (`mbr`).
        alignment: Links of source and target words, counted from 0, if they were requested.
        vocabulary: "shortlist" if probabilities are normalized over the pieces of a shortlist; None
            for the whole vocabulary.
    """

    text: str
    score: float
    log_prob: float
    proven: bool | None = None
    confidence: float | None = None
    utility: float | None = None
    alignment: tuple[tuple[int, int], ...] | None = None
    vocabulary: Literal["shortlist"] | None = None


@dataclass(frozen=True)
class ScoredTarget:
    """A given translation with its probability under the model.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability.
        log_prob: Log probability in nats, EOS included.
        pieces: The subword pieces of the text, and EOS.
        piece_log_probs: Log probability of each piece given the previous ones, in nats.
        alignment: Links of source and target words, counted from 0, if they were requested.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...]
    piece_log_probs: tuple[float, ...]
    alignment: tuple[tuple[int, int], ...] | None = None


class LineEngine(Protocol):
    """Computes batches of sentences: an `Engine` in this process, or `Workers` in others."""

    @property
    def limits(self) -> BatchLimits:
        """Limits on batches."""

    def search(self, batch: SentenceBatch, config: SearchConfig) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each sentence, best first."""

    def score(self, batch: SentenceBatch, config: SearchConfig) -> list[ForcedOutput]:
        """Return the log probabilities of each sentence's target."""
