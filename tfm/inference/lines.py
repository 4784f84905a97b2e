"""Translating and scoring chunks of lines with an engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from tfm.config import BleuTokenizer, SearchConfig
from tfm.data.background import joined_at_exit
from tfm.data.subword import EOS, SubwordModel, Vocabulary
from tfm.folders.calibration import Calibration
from tfm.inference.batches import (
    BatchLimits,
    Chunk,
    ChunkT,
    LineError,
    Output,
    SentenceBatch,
    SentenceEncoder,
    by_line,
)
from tfm.inference.workers import compute_ahead
from tfm.reporting import say
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


def translate_lines(
    engine: LineEngine,
    vocabulary: Vocabulary,
    chunks: Iterable[ChunkT],
    config: SearchConfig,
    *,
    calibration: Calibration | None = None,
    tokenizer: BleuTokenizer = "13a",
    notify: Callable[[str], None] = say,
    valid_first: bool = False,
) -> Iterator[tuple[ChunkT, list[list[Translation]]]]:
    """Translate chunks of lines; `notify` receives warnings that quote them.

    The calibration is that of the only model, for the confidence in translations. Samples have
    none, nor do searches with a shortlist, whose probabilities are those of fewer pieces. The
    tokenizer is that of `mbr` by BLEU. With `valid_first`, the lines before one that cannot be
    translated are translated before its error.

    Yields:
        Each chunk, in order, and for each of its lines the `n_best` translations, best first, or
        the one that `mbr` chooses among them.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config, notify)
    batched = _batched(encoder.to_search, chunks, engine.limits, valid_first=valid_first)
    search = partial(engine.search, config=config)
    if config.search == "sample" or config.shortlist:
        calibration = None
    for chunk, batches, outputs in _compute(search, batched, engine.limits):
        found = decode(chunk, batches, outputs, vocabulary, calibration)
        if config.mbr is not None:
            from tfm.inference.mbr import most_useful  # here, because it loads sacreBLEU

            are_samples = config.search == "sample"
            choose = partial(most_useful, are_samples=are_samples, tokenizer=tokenizer)
            found = [[choose(each, config.mbr)] for each in found]
        yield chunk, found


def score_lines(
    engine: LineEngine,
    vocabulary: Vocabulary,
    chunks: Iterable[Chunk],
    config: SearchConfig,
    *,
    valid_first: bool = False,
) -> Iterator[tuple[Chunk, list[ScoredTarget]]]:
    """Compute the probability of each line's target; `valid_first` as in `translate_lines`.

    Yields:
        Each chunk, in order, and the scored target of each of its lines.
    """
    encoder = SentenceEncoder(vocabulary, engine.limits, config)
    batched = _batched(encoder.to_score, chunks, engine.limits, valid_first=valid_first)
    score = partial(engine.score, config=config)
    for chunk, batches, outputs in _compute(score, batched, engine.limits):
        found = by_line(batches, outputs)
        lines = map(vocabulary.normalization.output, chunk.paired_lines or [])
        texts = zip(chunk.line_numbers, lines, strict=True)
        yield chunk, [_scored(text, found[number], vocabulary.target) for number, text in texts]


def decode(
    chunk: Chunk,
    batches: Sequence[SentenceBatch],
    outputs: Sequence[list[list[Hypothesis]]],
    vocabulary: Vocabulary,
    calibration: Calibration | None = None,
) -> list[list[Translation]]:
    """Return the translations of each line of a chunk, from the outputs of its batches."""
    found = by_line(batches, outputs)
    nothing = [Translation("", score=0.0, log_prob=0.0)]
    return [
        _translations(found[number], vocabulary, calibration) if number in found else nothing
        for number in chunk.line_numbers
    ]


def _batched(
    encode: Callable[[ChunkT], list[SentenceBatch]],
    chunks: Iterable[ChunkT],
    limits: BatchLimits,
    *,
    valid_first: bool,
) -> Iterator[tuple[ChunkT, list[SentenceBatch]]]:
    """Yield chunks with their batches; if `valid_first`, the lines before an error come first."""
    if limits.num_workers > 1:  # a daemon thread reads ahead, and SentencePiece is in C++
        encode = joined_at_exit(encode)
    for chunk in chunks:
        try:
            batches = encode(chunk)
        except LineError as error:
            before = chunk.before(error.number)
            if valid_first and before.columns[0]:
                yield from _batched(encode, [before], limits, valid_first=True)
            raise
        yield chunk, batches


def _compute(
    compute: Callable[[SentenceBatch], list[Output]],
    batched: Iterable[tuple[ChunkT, list[SentenceBatch]]],
    limits: BatchLimits,
) -> Iterator[tuple[ChunkT, list[SentenceBatch], list[list[Output]]]]:
    """Yield each chunk, in order, with its batches and their outputs."""
    if limits.num_workers > 1:
        yield from compute_ahead(compute, batched, num_workers=limits.num_workers)
        return
    for chunk, batches in batched:
        yield chunk, batches, [compute(batch) for batch in batches]


def _translations(
    hypotheses: list[Hypothesis], vocabulary: Vocabulary, calibration: Calibration | None
) -> list[Translation]:
    texts = vocabulary.outputs([found.tokens for found in hypotheses])
    return [
        Translation(
            text,
            found.score,
            found.log_prob,
            found.proven,
            None
            if calibration is None
            else calibration.confidence(found.log_prob, len(found.tokens) + 1),
            vocabulary=found.vocabulary,
        )
        for text, found in zip(texts, hypotheses, strict=True)
    ]


def _scored(text: str, output: ForcedOutput, subword_model: SubwordModel) -> ScoredTarget:
    hypothesis = output.hypothesis
    pieces = tuple(subword_model.pieces([*hypothesis.tokens, EOS]))
    return ScoredTarget(text, hypothesis.score, hypothesis.log_prob, pieces, output.token_log_probs)
