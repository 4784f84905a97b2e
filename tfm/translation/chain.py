"""The chain from text to text: steps around the search of an engine."""

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from tfm.config import SearchConfig
from tfm.machine.background import joined_at_exit
from tfm.reporting import say
from tfm.search.hypotheses import Hypothesis
from tfm.translation.batches import BatchLimits, LineError, SentenceBatch, SentenceEncoder
from tfm.translation.steps import Output, Segment, Step
from tfm.vocabulary.subword import EOS, Vocabulary

_NUM_AHEAD = 2  # chunks that are read ahead, and batches that wait, per worker

PartT = TypeVar("PartT")  # of a text
NBestLists = list[list[Hypothesis]]


class _Prepared(NamedTuple):
    unit: Segment
    segments: Sequence[Segment]  # that it has become
    states: Sequence[Sequence[Any]]  # of each step: what its `before` returns for its `after`


def _prepare(unit: Segment, steps: Sequence[Step]) -> _Prepared:
    segments: list[Segment] = [unit]
    states = []
    for step in steps:
        pairs = [step.before(each) for each in segments]
        segments = [segment for divided, _ in pairs for segment in divided]
        states.append([state for _, state in pairs])
    return _Prepared(unit, segments, states)


class Part:
    """Units that steps have prepared, which are searched together."""

    def __init__(self, steps: Sequence[Step], prepared: Sequence[_Prepared]) -> None:
        self._steps, self._prepared = steps, prepared
        self.units = [each.unit for each in prepared]
        self.segments = [segment for each in prepared for segment in each.segments]

    @classmethod
    def of(cls, units: Iterable[Segment], steps: Sequence[Step]) -> "Part":
        """Return units after the steps before a search."""
        return cls(steps, [_prepare(unit, steps) for unit in units])

    def until(self, number: int) -> "Part":
        """Return the units before the unit of the segment with a number."""
        numbers = [[segment.number for segment in each.segments] for each in self._prepared]
        end = next(index for index, each in enumerate(numbers) if number in each)
        return Part(self._steps, self._prepared[:end])

    def finish(self, outputs: list[list[Output]]) -> list[list[Output]]:
        """Return the outputs of the units after all steps, given the outputs of the segments."""
        for index in reversed(range(len(self._steps))):
            states = [state for each in self._prepared for state in each.states[index]]
            outputs = self._steps[index].after(states, outputs)
        return outputs


class BatchEngine(Protocol):
    """Computes batches of sentences: an `Engine` in this process, or `Workers` in others."""

    @property
    def limits(self) -> BatchLimits:
        """Limits on batches."""

    def run(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        """Return the `n_best` hypotheses of each sentence, best first, or its scored target."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Translates text, or scores given targets."""

    engine: BatchEngine  # the models, in this process or in others
    vocabulary: Vocabulary
    notify: Callable[[str], None] = say  # receives warnings that quote lines

    def run(
        self,
        chunks: Iterable[Sequence[Segment]],
        config: SearchConfig,
        steps: Sequence[Step] = (),
        *,
        scores_given: bool = False,
        num_done: int = 0,
        valid_first: bool = False,
    ) -> Iterator[tuple[list[Segment], list[list[Output]]]]:
        """Translate chunks of units, which are sorted by length together.

        Args:
            chunks: The units.
            config: Settings of the search.
            steps: The steps around the search, from the outermost to the innermost.
            scores_given: Whether to score the given text of each unit as its target, instead of
                translating with it as a prefix.
            num_done: The number of units that have outputs already: they are only prepared.
            valid_first: Whether the units before one that cannot be translated are translated
                before its error.

        Yields:
            The units of each chunk, in order, and the outputs of each, best first. Chunks that
            steps have lengthened may be divided.
        """
        if config.no_repetition:  # a step chooses among all
            config = replace(config, n_best=config.beam_size)
        encoder = SentenceEncoder(
            self.vocabulary, self.engine.limits, config, self.notify, is_scored=scores_given
        )
        # With workers, a daemon thread reads ahead, and SentencePiece is in C++.
        has_workers = self.engine.limits.num_workers > 1
        encode = joined_at_exit(encoder.encode) if has_workers else encoder.encode
        parts = self._parts(chunks, steps, num_done)
        batched = _batched(encode, parts, valid_first=valid_first)
        for part, by_row in run_batches(self.engine, batched, config):
            hypotheses = (by_row.get(row, []) for row in range(len(part.segments)))
            outputs = list(map(self._outputs, part.segments, hypotheses))
            yield part.units, part.finish(outputs)

    def search_lines(
        self, lines: Iterable[str], config: SearchConfig, steps: Sequence[Step] = ()
    ) -> list[list[Output]]:
        """Return the translations of each line, which is numbered from 1 on, best first."""
        segments = [Segment(number, line) for number, line in enumerate(lines, start=1)]
        return [n_best for _, outputs in self.run([segments], config, steps) for n_best in outputs]

    def search_by_length(
        self,
        lines: Sequence[str],
        indices: Iterable[int],
        config: SearchConfig,
        steps: Sequence[Step] = (),
        *,
        size: int,
    ) -> Iterator[dict[int, Output]]:
        """Yield the best translations of `size` lines, by their indices, the longest lines first.

        Lines of similar lengths are translated together; `indices` selects those to translate.
        """
        order = sorted(indices, key=lambda index: -len(lines[index]))
        starts = range(0, len(order), size)
        chunks = ([Segment(i + 1, lines[i]) for i in order[at : at + size]] for at in starts)
        for units, found in self.run(chunks, config, steps):
            yield {unit.number - 1: best for unit, (best, *_) in zip(units, found, strict=True)}

    def _parts(
        self, chunks: Iterable[Sequence[Segment]], steps: Sequence[Step], num_done: int
    ) -> Iterator[Part]:
        """Yield prepared units, without the units that have outputs already."""
        for chunk in chunks:
            limit = max(len(chunk), self.engine.limits.chunk_lines)
            prepared: list[_Prepared] = []
            size = 0
            for unit in chunk:
                each = _prepare(unit, steps)
                if num_done:
                    num_done -= 1
                    continue
                prepared.append(each)
                size += len(each.segments)
                if size >= limit:
                    yield Part(steps, prepared)
                    prepared, size = [], 0
            if prepared or not chunk:
                yield Part(steps, prepared)

    def _outputs(self, segment: Segment, hypotheses: Sequence[Hypothesis]) -> list[Output]:
        """Return the outputs of a segment; an empty one if it was not searched."""
        if not hypotheses:
            return [Output("", score=0.0, log_prob=0.0)]
        target = self.vocabulary.target
        if hypotheses[0].token_log_probs is None:
            texts = self.vocabulary.outputs([hypothesis.tokens for hypothesis in hypotheses])
        else:
            texts = [self.vocabulary.normalization.output(segment.given or "")]
        return [
            Output(
                text,
                hypothesis.score,
                hypothesis.log_prob,
                pieces=tuple(target.pieces([*hypothesis.tokens, EOS])),
                piece_log_probs=hypothesis.token_log_probs,
                proven=hypothesis.proven,
            )
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]


def _batched(
    encode: Callable[[Sequence[Segment]], list[SentenceBatch]],
    parts: Iterable[Part],
    *,
    valid_first: bool,
) -> Iterator[tuple[Part, list[SentenceBatch]]]:
    """Yield parts with their batches; if `valid_first`, the units before an error first."""
    for part in parts:
        try:
            batches = encode(part.segments)
        except LineError as error:
            valid = part.until(error.number)
            if valid_first and valid.units:
                yield from _batched(encode, [valid], valid_first=True)
            raise
        yield part, batches


def run_batches(
    engine: BatchEngine,
    batched: Iterable[tuple[PartT, Sequence[SentenceBatch]]],
    config: SearchConfig,
) -> Iterator[tuple[PartT, dict[int, list[Hypothesis]]]]:
    """Compute the batches of parts of a text.

    With several workers, a thread reads ahead, and batches are computed at the same time. An error
    in reading is raised after the results of the parts before it.

    Yields:
        Each part, in order, with the hypotheses of its sentences by their rows.
    """
    num_workers = engine.limits.num_workers
    if num_workers == 1:
        for part, batches in batched:
            yield part, _by_row(batches, [engine.run(each, config) for each in batches])
        return
    underway: queue.Queue[
        tuple[PartT, Sequence[SentenceBatch], list[Future[NBestLists]]] | BaseException | None
    ] = queue.Queue(maxsize=_NUM_AHEAD * num_workers)
    waiting = threading.Semaphore(_NUM_AHEAD * num_workers)
    threads = ThreadPoolExecutor(num_workers)  # each thread waits for one worker

    def submit(batch: SentenceBatch) -> Future[NBestLists]:
        waiting.acquire()
        future = threads.submit(engine.run, batch, config)
        future.add_done_callback(lambda _: waiting.release())
        return future

    def read() -> None:
        try:
            for part, batches in batched:
                underway.put((part, batches, list(map(submit, batches))))
            underway.put(None)
        except BaseException as error:  # raised again in the consumer's thread
            underway.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := underway.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            part, batches, futures = item
            yield part, _by_row(batches, [future.result() for future in futures])
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _by_row(
    batches: Sequence[SentenceBatch], results: Iterable[NBestLists]
) -> dict[int, list[Hypothesis]]:
    rows = itertools.chain(*(batch.rows for batch in batches))
    return dict(zip(rows, itertools.chain(*results), strict=True))
