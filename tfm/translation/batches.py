"""Batches of token ids from lines of text, for search and for forced decoding."""

import heapq
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tfm.config import SearchConfig
from tfm.errors import DataError
from tfm.reporting import say
from tfm.text.tags import untagged
from tfm.translation.steps import Segment
from tfm.vocabulary.subword import Vocabulary

if TYPE_CHECKING:
    from tfm.search.phrases import Phrase, PhraseEncoder

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


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences that are translated or scored together."""

    line_numbers: Sequence[int]  # of each sentence, for messages and random seeds
    sources: Sequence[list[int]]  # token ids of each source, without EOS
    # Token ids of each forced prefix, or of each target to score, without EOS.
    targets: Sequence[list[int]]
    is_scored: bool = False  # whether targets are to be scored
    # What each output must contain; empty if no output of the batch must contain anything.
    phrases: "Sequence[Sequence[Phrase]]" = ()
    rows: Sequence[int] = ()  # the place of each sentence among all that were encoded together

    def __len__(self) -> int:
        return len(self.line_numbers)

    def __getitem__(self, sentences: slice) -> "SentenceBatch":
        return replace(
            self,
            line_numbers=self.line_numbers[sentences],
            sources=self.sources[sentences],
            targets=self.targets[sentences],
            phrases=self.phrases[sentences],
            rows=self.rows[sentences],
        )


class SentenceEncoder:
    """Encodes segments of text as batches of token ids, within the limits of engine and search.

    A segment's `given` is a prefix, or if it `is_scored`, the whole target. Of several sources in
    an unknown script, or without a tag, only the first is reported.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: BatchLimits,
        config: SearchConfig,
        notify: Callable[[str], None] = say,
        *,
        is_scored: bool = False,
    ) -> None:
        self._notify, self._is_scored = notify, is_scored
        self._vocabulary = vocabulary
        self._limits = limits
        self._config = config
        self._has_warned_of_unknown = self._has_warned_of_tag = False
        if config.tag is not None:
            vocabulary.require_tag(config.tag)

    def encode(self, segments: Sequence[Segment]) -> list[SentenceBatch]:
        """Return batches of all segments to score, or of the non-empty segments to search."""
        targets, sources = self._targets(segments), self._sources(segments)
        sizes, indices = list(map(len, sources)), list(range(len(sources)))
        if self._is_scored:
            sizes = list(map(max, sizes, map(len, targets)))
        else:
            indices = [index for index in indices if sources[index] or targets[index]]
        phrases = [self._phrases(segment) for segment in segments]
        free = [index for index in indices if not phrases[index]]
        constrained = [index for index in indices if phrases[index]]
        groups = [*self._cut(free, sizes), *self._cut(constrained, sizes, phrases)]
        return [
            SentenceBatch(
                [segments[i].number for i in rows],
                [sources[i] for i in rows],
                [targets[i] for i in rows],
                is_scored=self._is_scored,
                phrases=[phrases[i] for i in rows if phrases[i]],
                rows=rows,
            )
            for rows in groups
        ]

    def _phrases(self, segment: Segment) -> "Sequence[Phrase]":
        """Return the phrases that an output must contain, if the vocabulary can spell them."""
        encoded = (self._phrase_encoder.encode(*each) for each in segment.required)
        return [phrase for phrase in encoded if phrase is not None]

    @cached_property
    def _phrase_encoder(self) -> "PhraseEncoder":
        from tfm.search.phrases import PhraseEncoder

        return PhraseEncoder(self._vocabulary)

    def _sources(self, segments: Sequence[Segment]) -> list[list[int]]:
        lines = self._vocabulary.clean(segment.source for segment in segments)
        if (tag := self._config.tag) is not None:
            pairs = zip(segments, lines, strict=True)
            lines = [self._tagged(tag, line, segment) for segment, line in pairs]
        else:
            tags = {*self._vocabulary.tags}  # without text, they are nothing to translate
            lines = ["" if line.strip() in tags else line for line in lines]
        sources = self._vocabulary.source.encode(lines)
        limit = self._config.max_source_length
        remedy = "shorten it, or set max_source_length to truncate it"
        for segment, ids in zip(segments, sources, strict=True):
            self._check_positions(ids[:limit], segment.number, segment.unit, remedy)
        for segment, line, ids in zip(segments, lines, sources, strict=True):
            name = f"{segment.unit} {segment.number:,}"
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

    def _tagged(self, tag: str, line: str, segment: Segment) -> str:
        """Return a line after its tag; LineError if it begins with another one."""
        is_tag = self._vocabulary.source.has_tag
        try:
            line = untagged(line, tag, is_tag, place=f"{segment.unit} {segment.number:,}")
        except DataError as error:
            raise LineError(segment.number, str(error)) from error
        return f"{tag} {line}" if line else ""

    def _warn_of_unknown(self, name: str, line: str, ids: Sequence[int]) -> None:
        """Warn once of a line in a script, or with words, that the training text did not have."""
        if self._has_warned_of_unknown:
            return
        subwords, letters = self._vocabulary.source, [*filter(str.isalpha, line)]
        problem = ""
        if 2 * subwords.num_known_letters(ids) < len(letters):
            problem = f"most letters of {name} ({_quoted(line)}) are not in the model's vocabulary"
        # In scripts without capitals, a letter may be a word.
        elif subwords.spells_out(ids) and 2 * sum(map(_has_case, letters)) > len(letters):
            problem = f"the words of {name} ({_quoted(line)}) are unlike those of the training text"
        if problem:
            self._has_warned_of_unknown = True
            self._notify(
                f"warning: {problem}: do not rely on its output; further such text is not reported"
            )

    def _targets(self, segments: Sequence[Segment]) -> list[list[int]]:
        name = "target" if self._is_scored else "prefix"
        given = [segment.given or "" for segment in segments]
        if not any(given):
            return [[] for _ in given]
        lines = self._vocabulary.clean(given)
        if not self._is_scored:  # white space at its end ends a word
            lines = [
                f"{line.rstrip()} " if line and before[-1:].isspace() else line
                for line, before in zip(lines, given, strict=True)
            ]
        targets = self._vocabulary.target.encode(lines)
        for segment, ids in zip(segments, targets, strict=True):
            number = segment.number
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

    def _max_sentences(self, phrases: "Sequence[Sequence[Phrase]]") -> int | None:
        """Return the maximum number of sentences in a batch; None if its tokens are limited."""
        if self._is_scored or self._config.max_tokens is not None:
            return None
        num_hypotheses = max(self._config.beam_size, self._config.n_best)
        if phrases:
            from tfm.search.constrained import beam_width

            most = max(sum(phrase.size for phrase in each) for each in phrases)
            num_hypotheses = beam_width(num_hypotheses, most)
        return max(1, self._limits.max_hypotheses // num_hypotheses)

    def _cut(
        self,
        indices: Sequence[int],
        lengths: Sequence[int],
        phrases: "Sequence[Sequence[Phrase]]" = (),
    ) -> list[Sequence[int]]:
        """Group sentences into batches of at most `max_tokens`, padding and EOS included.

        The longest sentences come first, so the first batch needs the most memory. Each of several
        workers gets the same number of batches, cut so that none waits long for another at the
        end. `indices` selects the sentences; `lengths`, without EOS, and the required `phrases`
        belong to all sentences of the chunk.
        """
        if not indices:
            return []
        order = sorted(indices, key=lambda index: -lengths[index])
        sizes = [lengths[index] + 1 for index in order]
        max_sentences = self._max_sentences(phrases) or len(sizes)
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


def _has_case(letter: str) -> bool:
    return letter.upper() != letter.lower()


def _quoted(line: str) -> str:
    return f'"{line}"' if len(line) <= _QUOTED_CHARACTERS else f'"{line[:_QUOTED_CHARACTERS]}…"'
