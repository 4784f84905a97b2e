"""Text in, text out, over chunks of lines, whatever computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from tfm.config import SearchConfig
from tfm.data.subword import EOS, SubwordModel, Vocabulary
from tfm.errors import TfmError
from tfm.inference.models import Models, Output, Take, Task
from tfm.inference.sentences import Chunk, SentenceBatch, SentenceEncoder
from tfm.search.forced import ForcedOutput
from tfm.search.hypothesis import Hypothesis


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: Plain text.
        score: Length-normalised log probability, by which translations are ranked.
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
        score: Length-normalised log probability.
        log_prob: Log probability in nats, that of the end included.
        pieces: The pieces that it is made of, and the end.
        piece_log_probs: Log probability in nats of each, given those before.
    """

    text: str
    score: float
    log_prob: float
    pieces: tuple[str, ...]
    piece_log_probs: tuple[float, ...]


class Engine(Protocol):
    """What computes: models in this process, or in others."""

    @property
    def max_positions(self) -> int | None:
        """The most tokens that the models take in on a side; None if there is no limit."""

    def map(
        self, task: Task[Output], take: Take, config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[Output]]]:
        """Do a task to batches, which are taken as they are needed; the results in order."""


def search_chunks(
    engine: Engine,
    vocabulary: Vocabulary,
    chunks: Iterable[Chunk],
    config: SearchConfig,
    *,
    read_ahead: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[Chunk, list[list[Translation]]]]:
    """Translate chunks of lines; see `Translator.search`.

    Args:
        engine: What computes.
        vocabulary: Of its models.
        chunks: The lines.
        config: How to search.
        read_ahead: Asked while a chunk is being translated, whether the next may be read: not if
            that may be long in coming, as those before would wait for it.

    Yields:
        Each chunk, in order, and for each of its lines the `n_best` translations, best first.
    """
    encoder = SentenceEncoder(vocabulary, engine.max_positions, config)
    source = _Batches(chunks, encoder.to_search, read_ahead=read_ahead)
    for chunk, found in _outputs(engine, Models.search, source, config):
        translations = [[Translation(text="", score=0.0, log_prob=0.0)] for _ in chunk.lines]
        for number, hypotheses in found.items():
            translations[number - chunk.first_line] = _translations(hypotheses, vocabulary.target)
        yield chunk, translations


def score_chunks(
    engine: Engine,
    vocabulary: Vocabulary,
    chunks: Iterable[Chunk],
    config: SearchConfig,
    *,
    read_ahead: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[Chunk, list[ScoredTarget]]]:
    """Compute how probable the translations are that go along; see `Translator.score_targets`.

    Args:
        engine: What computes.
        vocabulary: Of its models.
        chunks: The lines.
        config: How to score.
        read_ahead: As in `search_chunks`.

    Yields:
        Each chunk, in order, and the target of each of its lines.
    """
    encoder = SentenceEncoder(vocabulary, engine.max_positions, config)
    source = _Batches(chunks, encoder.to_score, read_ahead=read_ahead)
    for chunk, found in _outputs(engine, Models.score, source, config):
        yield (
            chunk,
            [
                _scored(text, found[number], vocabulary.target)
                for number, text in enumerate(chunk.beside or [], chunk.first_line)
            ],
        )


@dataclass(frozen=True, kw_only=True)
class _Underway(Generic[Output]):
    """A chunk whose batches have been handed on, and the outputs there are, by line number."""

    chunk: Chunk
    num_sentences: int
    found: dict[int, Output] = field(default_factory=dict)


class _Batches:
    """The batches of chunks, which are read as batches are taken.

    Args:
        chunks: The chunks.
        encode: Makes batches of one.
        read_ahead: Whether one may be read now, before it must.

    Attributes:
        underway: The chunks that were read, until someone removes them.
        have_ended: Whether there are no more.
    """

    def __init__(
        self,
        chunks: Iterable[Chunk],
        encode: Callable[[Chunk], list[SentenceBatch]],
        *,
        read_ahead: Callable[[], bool],
    ) -> None:
        self.underway: deque[_Underway[Any]] = deque()
        self.have_ended = False
        self._unread = iter(chunks)
        self._encode = encode
        self._may_read_ahead = read_ahead
        self._ready: deque[SentenceBatch] = deque()
        self._failure: TfmError | None = None

    def take(self, wait: bool) -> SentenceBatch | None:
        """See `Take`. What goes wrong is raised when nothing before it is left to do.

        A chunk may have nothing to do: it is let out before the next is waited for.
        """
        while not self._ready:
            if wait and self.underway:
                return None
            if wait and self._failure is not None:
                raise self._failure
            if not wait and (self._failure is not None or not self._may_read_ahead()):
                return None
            try:
                chunk = next(self._unread, None)
                if chunk is None:
                    self.have_ended = True
                    return None
                self._ready.extend(self._encode(chunk))
            except TfmError as error:
                self._failure = error
                continue
            num_sentences = sum(map(len, self._ready))
            self.underway.append(_Underway(chunk=chunk, num_sentences=num_sentences))
        return self._ready.popleft()


def _outputs(
    engine: Engine, task: Task[Output], batches: _Batches, config: SearchConfig
) -> Iterator[tuple[Chunk, dict[int, Output]]]:
    """Yield each chunk, with the output of its sentences by line number, once it has them all."""
    underway = batches.underway

    def finished() -> Iterator[tuple[Chunk, dict[int, Output]]]:
        while underway and len(underway[0].found) == underway[0].num_sentences:
            done = underway.popleft()
            yield done.chunk, done.found

    while not batches.have_ended:
        for batch, outputs in engine.map(task, batches.take, config):
            yield from finished()  # those without any sentence, before the one that this belongs to
            underway[0].found.update(zip(batch.line_numbers, outputs, strict=True))
            yield from finished()
        yield from finished()


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
