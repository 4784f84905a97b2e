"""Batches of token ids from lines of text, for search and for forced decoding."""

import heapq
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from tfm.config import SearchConfig
from tfm.data.subword import Vocabulary, shown_tags
from tfm.data.tags import untagged
from tfm.errors import DataError, UsageError
from tfm.reporting import say

Output = TypeVar("Output")
ChunkT = TypeVar("ChunkT", bound="Chunk")

# Lines that are sorted by length together: enough to fill batches, few enough for a quick answer.
CHUNK_LINES = 1_000
# Self-attention of a target takes memory quadratic in its length: at this limit, some gigabytes.
_MAX_TARGET_TOKENS = 4_096
_QUOTED_CHARACTERS = 40
# The least number of batches of a chunk for each of several workers: short ones even out times.
_MIN_ROUNDS = 2
_NUM_CUTS = 32  # about how many ways to cut a chunk into batches are compared


class LineError(DataError):
    """A line that cannot be translated or scored, by its number in the text."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Limits on the batches of an engine."""

    # Maximum number of source or target tokens, EOS included; None if unlimited.
    max_positions: int | None
    max_tokens: int  # source tokens per batch unless the user sets them
    # Hypotheses per batch of a search, unless the user sets the tokens.
    max_hypotheses: int = sys.maxsize
    chunk_lines: int = CHUNK_LINES  # lines to sort by length together
    num_workers: int = 1  # number of batches that are computed at the same time


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Lines that are sorted by length together."""

    unit: ClassVar[str] = "line"  # what is numbered, for messages

    line_numbers: Sequence[int]  # in the text, for messages and the random seeds of sampling
    lines: Sequence[str]  # plain text, one sentence per line
    # The forced prefix or the target of each line; None without either.
    paired_lines: Sequence[str] | None = None

    def __getitem__(self, rows: slice) -> Self:
        paired_lines = None if self.paired_lines is None else self.paired_lines[rows]
        return replace(
            self,
            line_numbers=self.line_numbers[rows],
            lines=self.lines[rows],
            paired_lines=paired_lines,
        )

    def before(self, number: int) -> Self:
        """Return the lines before the one with a number."""
        return self[: bisect_left(self.line_numbers, number)]

    @property
    def columns(self) -> list[Sequence[str]]:
        """The lines and, if there are any, those that are paired with them."""
        return [self.lines] if self.paired_lines is None else [self.lines, self.paired_lines]


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences that are translated or scored together."""

    line_numbers: Sequence[int]  # line number of each sentence in the text
    sources: Sequence[list[int]]  # token ids of each source, without EOS
    # Token ids of each forced prefix, or of each target to score, without EOS.
    targets: Sequence[list[int]]

    def __len__(self) -> int:
        return len(self.line_numbers)

    def __getitem__(self, rows: slice) -> "SentenceBatch":
        return SentenceBatch(self.line_numbers[rows], self.sources[rows], self.targets[rows])


class SentenceEncoder:
    """Encodes chunks of text as batches of token ids, within the limits of engine and search.

    Of several sources in an unknown script, or without a tag, only the first is reported.

    Raises:
        UsageError: The tag of the config is not in the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: BatchLimits,
        config: SearchConfig,
        notify: Callable[[str], None] = say,
    ) -> None:
        self._notify = notify
        self._vocabulary = vocabulary
        self._limits = limits
        self._config = config
        self._has_warned_of_unknown = self._has_warned_of_tag = False
        if config.tag is not None and not vocabulary.source.has_tag(config.tag):
            known = vocabulary.source.tags()
            advice = (
                f"choose among {shown_tags(known)}" if known else "it has none, leave --tag out"
            )
            raise UsageError(f"the model's vocabulary has no tag {config.tag}: {advice}")

    def to_search(self, chunk: Chunk) -> list[SentenceBatch]:
        """Return batches of the lines that are not empty or have a prefix.

        Raises:
            LineError: A line or prefix has more tokens than the model accepts.
            DataError: The numbers of lines and prefixes differ.
        """
        prefixes: list[list[int]] = [[] for _ in chunk.lines]
        if chunk.paired_lines is not None:
            prefixes = self._targets(chunk, "prefix", "prefixes", keeps_last_space=True)
        sources = self._sources(chunk)
        indices = [i for i, ids in enumerate(sources) if ids or prefixes[i]]
        max_sentences = None
        if self._config.max_tokens is None:
            num_hypotheses = max(self._config.beam_size, self._config.n_best)
            max_sentences = max(1, self._limits.max_hypotheses // num_hypotheses)
        batched = self._cut(indices, list(map(len, sources)), max_sentences)
        return [_batch(rows, chunk.line_numbers, sources, prefixes) for rows in batched]

    def to_score(self, chunk: Chunk) -> list[SentenceBatch]:
        """Return batches of all lines with their targets.

        Raises:
            LineError: A line or target has more tokens than the model accepts.
            DataError: The numbers of lines and targets differ.
        """
        targets = self._targets(chunk, "target", "targets")
        sources = self._sources(chunk)
        sizes = [max(len(ids), len(target)) for ids, target in zip(sources, targets, strict=True)]
        batched = self._cut(range(len(sizes)), sizes)
        return [_batch(rows, chunk.line_numbers, sources, targets) for rows in batched]

    def _sources(self, chunk: Chunk) -> list[list[int]]:
        lines = self._vocabulary.clean(chunk.lines)
        if (tag := self._config.tag) is not None:
            numbered = zip(chunk.line_numbers, lines, strict=True)
            lines = [self._tagged(tag, line, number, chunk.unit) for number, line in numbered]
        sources = self._vocabulary.source.encode(lines)
        limit = self._config.max_source_length
        remedy = "shorten it, or set max_source_length to truncate it"
        for number, ids in zip(chunk.line_numbers, sources, strict=True):
            self._check_positions(ids[:limit], number, chunk.unit, remedy)
        for number, line, ids in zip(chunk.line_numbers, lines, sources, strict=True):
            name = f"{chunk.unit} {number:,}"
            self._warn_of_unknown(name, line, ids)
            if tag is None and not self._has_warned_of_tag:
                self._has_warned_of_tag = self._vocabulary.check_tag(
                    line, f"{name} ({_quoted(line)})", self._notify, flag=", or give --tag"
                )
            if len(ids) > limit:
                self._notify(
                    f"warning: {name} ({_quoted(line)}) has {len(ids):,} tokens: "
                    f"truncated to {limit:,}; to use all of it, set a larger max_source_length"
                )
                del ids[limit:]
        return sources

    def _tagged(self, tag: str, line: str, number: int, unit: str) -> str:
        """Return a line after its tag; LineError if it begins with another one."""
        is_tag = self._vocabulary.source.has_tag
        try:
            line = untagged(line, tag, is_tag, place=f"{unit} {number:,}")
        except DataError as error:
            raise LineError(number, str(error)) from error
        return f"{tag} {line}" if line else ""

    def _warn_of_unknown(self, name: str, line: str, ids: Sequence[int]) -> None:
        """Warn once of a line in a script that the models have not been trained on."""
        if self._has_warned_of_unknown:
            return
        num_letters = sum(map(str.isalpha, line))
        if 2 * self._vocabulary.source.num_known_letters(ids) < num_letters:
            self._has_warned_of_unknown = True
            self._notify(
                f"warning: most letters of {name} ({_quoted(line)}) are not in the "
                "model's vocabulary: do not rely on its output; further such text is not reported"
            )

    def _targets(
        self, chunk: Chunk, name: str, plural: str, *, keeps_last_space: bool = False
    ) -> list[list[int]]:
        given = chunk.paired_lines or []
        lines = self._vocabulary.clean(given)
        if keeps_last_space:  # which ends a word
            lines = [
                f"{line.rstrip()} " if line and before[-1:].isspace() else line
                for line, before in zip(lines, given, strict=True)
            ]
        if len(lines) != len(chunk.lines):
            raise DataError(
                f"there are {len(chunk.lines):,} lines, but {len(lines):,} {plural}: give one each"
            )
        targets = self._vocabulary.target.encode(lines)
        for number, ids in zip(chunk.line_numbers, targets, strict=True):
            if len(ids) > _MAX_TARGET_TOKENS:
                raise LineError(
                    number,
                    f"{name} {number:,} has {len(ids):,} tokens, but at most "
                    f"{_MAX_TARGET_TOKENS:,} are allowed: shorten it",
                )
            self._check_positions(ids, number, name, "shorten it")
        return targets

    def _check_positions(self, ids: list[int], number: int, name: str, remedy: str) -> None:
        limit = self._limits.max_positions
        if limit is not None and len(ids) + 1 > limit:
            raise LineError(
                number,
                f"{name} {number:,} has {len(ids):,} tokens, but the model has learned positions "
                f"for at most {limit - 1:,} and EOS: {remedy}",
            )

    def _cut(
        self, indices: Sequence[int], lengths: Sequence[int], max_sentences: int | None = None
    ) -> list[Sequence[int]]:
        """Group sentences into batches of at most `max_tokens`, padding and EOS included.

        The longest sentences come first, so the first batch needs the most memory. Each of several
        workers gets the same number of batches, cut so that none waits long for another at the
        end. `indices` selects the sentences; `lengths` are those of all sentences of the chunk,
        without EOS; `max_sentences` limits a batch.
        """
        order = sorted(indices, key=lambda index: -lengths[index])
        sizes = [lengths[index] + 1 for index in order]
        max_sentences = max_sentences or len(sizes)
        limit = self._config.max_tokens or self._limits.max_tokens
        batches = _cut_sorted(sizes, limit, max_sentences)
        if (num_workers := self._limits.num_workers) > 1:
            rounds = max(_MIN_ROUNDS, -(-len(batches) // num_workers))

            def are_few_enough(limit: int) -> bool:
                return len(_cut_sorted(sizes, limit, max_sentences)) <= rounds * num_workers

            smallest = 1 + bisect_left(range(1, limit), True, key=are_few_enough)
            limits = range(smallest, min(limit, 2 * smallest) + 1, -(-smallest // _NUM_CUTS))
            cuts = [_cut_sorted(sizes, each, max_sentences) for each in limits]
            candidates = (cut for cut in cuts if len(cut) == len(cuts[0]))
            batches = min(candidates, key=lambda cut: _makespan(cut, sizes, num_workers))
        return [order[batch] for batch in batches]


def _cut_sorted(sizes: Sequence[int], limit: int, max_sentences: int) -> list[slice]:
    """Cut sentences of descending sizes into batches of at most `limit` tokens, with padding."""
    batches: list[slice] = []
    start = 0
    while start < len(sizes):
        end = start + min(max(1, limit // sizes[start]), max_sentences)
        batches.append(slice(start, end))
        start = end
    return batches


def _makespan(batches: Sequence[slice], sizes: Sequence[int], num_workers: int) -> int:
    """Return the tokens of the worker that ends last, if each takes the next batch when idle."""
    work = [0] * num_workers
    for batch in batches:
        heapq.heapreplace(work, work[0] + sum(sizes[batch]))
    return max(work)


def _quoted(line: str) -> str:
    return f'"{line}"' if len(line) <= _QUOTED_CHARACTERS else f'"{line[:_QUOTED_CHARACTERS]}…"'


def _batch(
    rows: Sequence[int],
    line_numbers: Sequence[int],
    sources: list[list[int]],
    targets: list[list[int]],
) -> SentenceBatch:
    """Select sentences of a chunk."""
    return SentenceBatch(
        [line_numbers[i] for i in rows], [sources[i] for i in rows], [targets[i] for i in rows]
    )


def by_line(
    batches: Sequence[SentenceBatch], outputs: Iterable[Sequence[Output]]
) -> dict[int, Output]:
    """Map line numbers to the outputs of batches."""
    return {
        number: output
        for batch, batch_outputs in zip(batches, outputs, strict=True)
        for number, output in zip(batch.line_numbers, batch_outputs, strict=True)
    }
