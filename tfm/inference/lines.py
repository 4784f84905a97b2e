"""Translating and scoring chunks of lines with an engine."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tfm.config import SearchConfig
from tfm.data.subword import EOS, SubwordModel, Vocabulary
from tfm.inference.batches import BatchLimits, Chunk, Output, SentenceEncoder
from tfm.inference.engine import Encode, Engine, Task
from tfm.search.forced import ForcedOutput
from tfm.search.scoring import Hypothesis


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability, which ranks translations.
        log_prob: Log probability in nats.
        proven: Whether exact search proved that no text scores better; None for other searches.
    """

    text: str
    score: float
    log_prob: float
    proven: bool | None = None


@dataclass(frozen=True)
class ScoredTarget:
    """A given translation with its probability under the model.

    Attributes:
        text: Plain text.
        score: Length-normalized log probability.
        log_prob: Log probability in nats, EOS included.
        pieces: The subword pieces of the text, and EOS.
        piece_log_probs: Log probability of each piece given the previous ones, in nats.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...]
    piece_log_probs: tuple[float, ...]


class LineEngine(Protocol):
    """Computes batches of lines: an `Engine` in this process, or `Workers` in others."""

    @property
    def limits(self) -> BatchLimits:
        """Limits on batches."""

    def map(
        self, task: Task[Output], chunks: Iterable[Chunk], encode: Encode, config: SearchConfig
    ) -> Iterator[tuple[Chunk, dict[int, Output]]]:
        """Translate or score chunks of lines; details are documented at `Engine.map`."""


def translate_lines(
    engine: LineEngine,
    vocabulary: Vocabulary,
    chunks: Iterable[Chunk],
    config: SearchConfig,
    *,
    normalizes_space: bool,
) -> Iterator[tuple[Chunk, list[list[Translation]]]]:
    """Translate chunks of lines; `normalizes_space` is that of the models.

    Yields:
        Each chunk, in order, and for each of its lines the `n_best` translations, best first.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config, normalizes_space=normalizes_space)
    for chunk, found in engine.map(Engine.search, chunks, encoder.to_search, config):
        translations = {
            number: _translations(hypotheses, vocabulary.target)
            for number, hypotheses in found.items()
        }
        yield (
            chunk,
            [
                translations.get(number, [Translation("", score=0.0, log_prob=0.0)])
                for number in chunk.line_numbers
            ],
        )


def score_lines(
    engine: LineEngine,
    vocabulary: Vocabulary,
    chunks: Iterable[Chunk],
    config: SearchConfig,
    *,
    normalizes_space: bool,
) -> Iterator[tuple[Chunk, list[ScoredTarget]]]:
    """Compute the probability of each line's target; `normalizes_space` is that of the models.

    Yields:
        Each chunk, in order, and the scored target of each of its lines.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config, normalizes_space=normalizes_space)
    for chunk, found in engine.map(Engine.score, chunks, encoder.to_score, config):
        texts = zip(chunk.line_numbers, chunk.paired_lines or [], strict=True)
        yield chunk, [_scored(text, found[number], vocabulary.target) for number, text in texts]


def _translations(hypotheses: list[Hypothesis], subword_model: SubwordModel) -> list[Translation]:
    texts = subword_model.decode([found.tokens for found in hypotheses])
    return [
        # A model with byte pieces can generate a line end.
        Translation(text.replace("\n", " "), found.score, found.log_prob, found.proven)
        for text, found in zip(texts, hypotheses, strict=True)
    ]


def _scored(text: str, output: ForcedOutput, subword_model: SubwordModel) -> ScoredTarget:
    hypothesis = output.hypothesis
    pieces = tuple(subword_model.pieces([*hypothesis.tokens, EOS]))
    return ScoredTarget(text, hypothesis.score, hypothesis.log_prob, pieces, output.token_log_probs)
