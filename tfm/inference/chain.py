"""The chain from text to text: steps around the search of an engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfm.config import SearchConfig
from tfm.data.background import joined_at_exit
from tfm.data.subword import EOS, Vocabulary
from tfm.inference.batches import LineError, SentenceBatch, SentenceEncoder
from tfm.inference.steps import Output, Segment, Step
from tfm.inference.workers import BatchEngine, run_batches
from tfm.reporting import say
from tfm.search.active import Hypothesis


class _Prepared(NamedTuple):
    unit: Segment
    segments: Sequence[Segment]  # that it has become
    states: Sequence[Sequence[Any]]  # what each step keeps of the segments before it


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
        """Return the units before the one to which the segment with a number belongs."""
        numbers = [[segment.number for segment in each.segments] for each in self._prepared]
        end = next(index for index, each in enumerate(numbers) if number in each)
        return Part(self._steps, self._prepared[:end])

    def finish(self, outputs: list[list[Output]]) -> list[list[Output]]:
        """Return the outputs of the units after all steps, given the outputs of the segments."""
        for index in reversed(range(len(self._steps))):
            states = [state for each in self._prepared for state in each.states[index]]
            outputs = self._steps[index].after(states, outputs)
        return outputs


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
            scores_given: Whether to score what is given of each unit as its target, instead of
                translating with it as a prefix.
            num_done: The number of units whose outputs exist: they are only prepared.
            valid_first: Whether the units before one that cannot be translated are translated
                before its error.

        Yields:
            The units of each chunk, in order, and the outputs of each, best first. Chunks that
            steps have lengthened may be divided.

        Raises:
            LineError: A segment has more tokens than the model accepts.
            UsageError: The tag of the config is not in the vocabulary.
        """
        encoder = SentenceEncoder(
            self.vocabulary, self.engine.limits, config, self.notify, is_scored=scores_given
        )
        # With workers, a daemon thread reads ahead, and SentencePiece is in C++.
        has_workers = self.engine.limits.num_workers > 1
        encode = joined_at_exit(encoder.encode) if has_workers else encoder.encode
        parts = self._parts(chunks, steps, num_done)
        batched = _batched(encode, parts, valid_first=valid_first)
        for part, by_number in run_batches(self.engine, batched, config):
            hypotheses = (by_number.get(segment.number, []) for segment in part.segments)
            outputs = list(map(self._outputs, part.segments, hypotheses))
            yield part.units, part.finish(outputs)

    def search_lines(
        self, lines: Iterable[str], config: SearchConfig, steps: Sequence[Step] = ()
    ) -> list[list[Output]]:
        """Return the translations of each line, which is numbered from 1 on, best first."""
        segments = [Segment(number, line) for number, line in enumerate(lines, start=1)]
        return [n_best for _, outputs in self.run([segments], config, steps) for n_best in outputs]

    def _parts(
        self, chunks: Iterable[Sequence[Segment]], steps: Sequence[Step], num_done: int
    ) -> Iterator[Part]:
        """Yield prepared units, without those whose outputs exist."""
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
                vocabulary=hypothesis.vocabulary,
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


def by_length(
    lines: Sequence[str], indices: Iterable[int], *, size: int
) -> Iterator[list[Segment]]:
    """Yield chunks of lines, the longest first, so that the lines of a chunk have similar lengths.

    They are numbered from 1 on in the order of all lines, of which `indices` selects some.
    """
    order = sorted(indices, key=lambda index: -len(lines[index]))
    for start in range(0, len(order), size):
        yield [Segment(index + 1, lines[index]) for index in order[start : start + size]]
