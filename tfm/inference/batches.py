"""Lines of text as batches of token ids, for search and for forced decoding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tfm.config import SearchConfig
from tfm.data.subword import Vocabulary
from tfm.errors import DataError
from tfm.reporting import say

Output = TypeVar("Output")

# Lines that are sorted by length together: enough for full batches, few enough to come soon.
CHUNK_LINES = 1_000
# Hidden numbers of a layer that are computed together: enough for fast matrix products, few enough
# for a laptop's memory.
_BATCH_ELEMENTS = 1 << 22
# Attention to a target takes memory by the square of its length: this much, some gigabytes.
_MAX_TARGET_TOKENS = 4_096


def default_max_tokens(d_model: int) -> int:
    """How many source tokens to translate together, by the width of the model."""
    return max(1, _BATCH_ELEMENTS // d_model)


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What batches suit an engine.

    Attributes:
        max_positions: The most tokens that its models take in on a side; None if unlimited.
        max_tokens: Source tokens of a batch, where the user does not set them; None if the engine
            is best given all lines at once.
        num_workers: How many batches are computed at a time.
        chunk_lines: How many lines are best read at once.
    """

    max_positions: int | None
    max_tokens: int | None
    num_workers: int = 1
    chunk_lines: int = CHUNK_LINES


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Lines that are sorted by length together.

    Attributes:
        first_line: Number of the first, for messages and for what is drawn at random.
        lines: Plain text, a sentence each.
        paired_lines: A text for each line that goes along with it: what its translation must start
            with, or a translation whose probability is wanted; None if there is none.
    """

    first_line: int
    lines: Sequence[str]
    paired_lines: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SentenceBatch:
    """Sentences that are translated together.

    Attributes:
        line_numbers: Where each is in the text.
        sources: Token ids of each, without EOS.
        targets: Token ids that its translation starts with, or is, without EOS.
    """

    line_numbers: Sequence[int]
    sources: Sequence[list[int]]
    targets: Sequence[list[int]]

    def __len__(self) -> int:
        return len(self.line_numbers)

    def __getitem__(self, rows: slice) -> "SentenceBatch":
        """Return some of the sentences."""
        return SentenceBatch(
            line_numbers=self.line_numbers[rows],
            sources=self.sources[rows],
            targets=self.targets[rows],
        )


class SentenceEncoder:
    """Cuts text into batches of token ids.

    Args:
        vocabulary: Of the model.
        limits: Of the engine's batches.
        config: Longest source and size of batches.
    """

    def __init__(self, vocabulary: Vocabulary, limits: BatchLimits, config: SearchConfig) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._config = config

    def to_search(self, chunk: Chunk) -> list[SentenceBatch]:
        """Batches of the lines that are not empty or that have a prefix.

        Raises:
            DataError: A line or prefix has more tokens than the model can take, or there are more
                prefixes than lines, or fewer.
        """
        sources = self._sources(chunk)
        prefixes: list[list[int]] = [[] for _ in sources]
        if chunk.paired_lines is not None:
            texts = [text if text.strip() else "" for text in chunk.paired_lines]
            prefixes = self._targets(texts, "prefix", chunk.first_line)
            _check_same_number(len(sources), len(prefixes), "prefixes")
        wanted = [i for i, ids in enumerate(sources) if ids or prefixes[i]]
        batches = self._batches(wanted, map(len, sources))
        return _sentence_batches(batches, chunk.first_line, sources, prefixes)

    def to_score(self, chunk: Chunk) -> list[SentenceBatch]:
        """Batches of all lines and their targets.

        Raises:
            DataError: A line or target has more tokens than the model can take, or there are more
                targets than lines, or fewer.
        """
        sources = self._sources(chunk)
        targets = self._targets(chunk.paired_lines or [], "target", chunk.first_line)
        _check_same_number(len(sources), len(targets), "targets")
        sizes = [max(len(ids), len(target)) for ids, target in zip(sources, targets, strict=True)]
        batches = self._batches(range(len(sizes)), sizes)
        return _sentence_batches(batches, chunk.first_line, sources, targets)

    def _sources(self, chunk: Chunk) -> list[list[int]]:
        sources = self._vocabulary.source.encode(chunk.lines)
        limit = self._config.max_source_length
        numbered = enumerate(zip(chunk.lines, sources, strict=True), chunk.first_line)
        for number, (line, ids) in numbered:
            if not line.strip():
                ids.clear()
            if len(ids) > limit:
                say(
                    f'warning: line {number:,} ("{line[:40]}…") has {len(ids):,} tokens: '
                    f"cut after {limit:,}"
                )
                del ids[limit:]
            self._check_positions(
                ids, f"line {number:,}", "shorten it, or let max_source_length cut it"
            )
        return sources

    def _targets(self, texts: Sequence[str], name: str, first_line: int) -> list[list[int]]:
        targets = self._vocabulary.target.encode(texts)
        for number, ids in enumerate(targets, first_line):
            if len(ids) > _MAX_TARGET_TOKENS:
                raise DataError(
                    f"{name} {number:,} has {len(ids):,} tokens, more than {_MAX_TARGET_TOKENS:,}: "
                    "shorten it"
                )
            self._check_positions(ids, f"{name} {number:,}", "shorten it")
        return targets

    def _check_positions(self, ids: list[int], name: str, remedy: str) -> None:
        limit = self._limits.max_positions
        if limit is not None and len(ids) + 1 > limit:
            raise DataError(
                f"{name} has {len(ids):,} tokens, but the model learned positions for at most "
                f"{limit - 1:,} and the end: {remedy}"
            )

    def _batches(self, indices: Sequence[int], sizes: Iterable[int]) -> Iterator[list[int]]:
        """Put indices into batches of at most `max_tokens`, padding and EOS included.

        The longest come first: the memory that is needed is known from the start. Each worker gets
        a batch if there are enough indices.

        Args:
            indices: What to put into batches.
            sizes: The tokens of every index there is.
        """
        tokens = [size + 1 for size in sizes]
        order = sorted(indices, key=lambda index: -tokens[index])
        everything = tokens[order[0]] * len(order) if order else 0
        share = -(-everything // self._limits.num_workers)
        limit = min(share, self._config.max_tokens or self._limits.max_tokens or share)
        start = 0
        while start < len(order):
            end = start + max(1, limit // tokens[order[start]])
            yield order[start:end]
            start = end


def _sentence_batches(
    batches: Iterable[list[int]],
    first_line: int,
    sources: list[list[int]],
    targets: list[list[int]],
) -> list[SentenceBatch]:
    return [
        SentenceBatch(
            line_numbers=[first_line + i for i in batch],
            sources=[sources[i] for i in batch],
            targets=[targets[i] for i in batch],
        )
        for batch in batches
    ]


def _check_same_number(num_lines: int, num_others: int, name: str) -> None:
    if num_lines != num_others:
        raise DataError(f"there are {num_lines:,} lines, but {num_others:,} {name}: give as many")


def by_line(
    batches: Sequence[SentenceBatch], outputs: Iterable[Sequence[Output]]
) -> dict[int, Output]:
    """Map line numbers to outputs, given those of each batch."""
    return {
        number: output
        for batch, found in zip(batches, outputs, strict=True)
        for number, output in zip(batch.line_numbers, found, strict=True)
    }
