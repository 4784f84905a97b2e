"""Chunks of lines, translated or scored by an engine."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tfm.config import SearchConfig
from tfm.data.subword import EOS, SubwordModel, Vocabulary
from tfm.inference.batches import BatchLimits, Chunk, Output, SentenceEncoder
from tfm.inference.engine import Encode, Engine, Task
from tfm.search.forced import ForcedOutput
from tfm.search.scoring import Hypothesis


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability, by which translations are ranked.
        log_prob: Log probability in nats.
        proven: Whether exact search proved that no text has a better score; None of other searches.
    """

    text: str
    score: float
    log_prob: float
    proven: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredTarget:
    """A translation that was given, as the model sees it.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability.
        log_prob: Log probability in nats, that of the end included.
        pieces: The pieces that it is made of, and the end.
        piece_log_probs: Log probability in nats of each, given those before.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...]
    piece_log_probs: tuple[float, ...]


class LineEngine(Protocol):
    """What computes batches of lines: an `Engine` in this process, or `Workers` in others."""

    @property
    def limits(self) -> BatchLimits:
        """What batches suit it."""

    def map(
        self, task: Task[Output], chunks: Iterable[Chunk], encode: Encode, config: SearchConfig
    ) -> Iterator[tuple[Chunk, dict[int, Output]]]:
        """Do a task to chunks of lines; see `Engine.map`."""


def translate_lines(
    engine: LineEngine, vocabulary: Vocabulary, chunks: Iterable[Chunk], config: SearchConfig
) -> Iterator[tuple[Chunk, list[list[Translation]]]]:
    """Translate chunks of lines; see `Translator.search`.

    Yields:
        Each chunk, in order, and for each of its lines the `n_best` translations, best first.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config)
    for chunk, found in engine.map(Engine.search, chunks, encoder.to_search, config):
        translations = [[Translation(text="", score=0.0, log_prob=0.0)] for _ in chunk.lines]
        for number, hypotheses in found.items():
            translations[number - chunk.first_line] = _translations(hypotheses, vocabulary.target)
        yield chunk, translations


def score_lines(
    engine: LineEngine, vocabulary: Vocabulary, chunks: Iterable[Chunk], config: SearchConfig
) -> Iterator[tuple[Chunk, list[ScoredTarget]]]:
    """Compute how probable the targets of lines are; see `Translator.score_targets`.

    Yields:
        Each chunk, in order, and the target of each of its lines.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config)
    for chunk, found in engine.map(Engine.score, chunks, encoder.to_score, config):
        yield (
            chunk,
            [
                _scored(text, found[number], vocabulary.target)
                for number, text in enumerate(chunk.paired_lines or [], chunk.first_line)
            ],
        )


def _translations(hypotheses: list[Hypothesis], subword_model: SubwordModel) -> list[Translation]:
    texts = subword_model.decode([found.tokens for found in hypotheses])
    return [
        Translation(
            # A model that spells in bytes can spell the end of a line.
            text=text.replace("\n", " "),
            score=found.score,
            log_prob=found.log_prob,
            proven=found.proven,
        )
        for text, found in zip(texts, hypotheses, strict=True)
    ]


def _scored(text: str, output: ForcedOutput, subword_model: SubwordModel) -> ScoredTarget:
    hypothesis = output.hypothesis
    return ScoredTarget(
        text=text,
        score=hypothesis.score,
        log_prob=hypothesis.log_prob,
        pieces=tuple(subword_model.pieces([*hypothesis.tokens, EOS])),
        piece_log_probs=output.token_log_probs,
    )
