"""Clean training text by rules, count the pairs that each rule drops, and find swapped sides."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfm.config import CleaningConfig, Normalization
from tfm.text.counts import PairCounts
from tfm.text.entities import decode_entities
from tfm.text.hashes import Hashes, SeenHashes, hash_texts
from tfm.text.lines import BytesPair, UnusableLine, in_chunks
from tfm.text.pair_checks import Check, is_mojibake
from tfm.text.seen import SeenText
from tfm.text.unique import UniqueSides

Numbers = npt.NDArray[np.int64]
# Returns a score for each pair, higher for better ones, by the pairs and their numbers in the text.
Score = Callable[[Sequence[BytesPair], Numbers], Sequence[float] | npt.NDArray[np.float32]]

_SAMPLE_PAIRS, _MIN_SAMPLE_PAIRS = 1_000, 50  # to compare the sides of two texts
_SWAP_MARGIN = 1.5  # swapped English and German have 4

_Trigrams = Counter[tuple[int, ...]]


class Cleaner:
    """Drops pairs that would harm training.

    The rules that are enabled apply in this order. A pair is counted for the first that drops it.

    0. columns, huge_line: A side is an `UnusableLine`.
    1. mojibake: A side was decoded from the wrong encoding; see `is_mojibake`.
    2. not_utf8: A side is not UTF-8.
    3. Decoding of entities and the normalization change the text that the next rules see.
    4. empty: A side has no text.
    5. too_long: A side has more than `max_characters`.
    6. copy: Both sides are the same.
    7. The checks of the text, from `ratio_checks`, `pair_checks` and `deviation_checks`.
    8. protected: A side is a copy, or nearly, of a line of `protected`.
    9. duplicate: The pair occurred before, in any text with the same tag that this object has
       cleaned.
    10. low_score: A model, or a file of scores, gives the pair less than `min_score`.
    11. repeated_side: `unique` has chosen another pair that shares a side with this one. While it
        is open, pairs are added to it instead.

    The hashes of many pairs are in temporary files in `scratch_dir`, 8 bytes a pair. By default,
    `normalization` is the config's.
    """

    def __init__(
        self,
        config: CleaningConfig,
        normalization: Normalization | None = None,
        *,
        scratch_dir: Path | None = None,
        protected: SeenText | None = None,
        unique: UniqueSides | None = None,
    ) -> None:
        self._config = config
        self._protected, self.unique = protected, unique
        self._normalization = normalization or config.normalization
        self._seen: defaultdict[str | None, SeenHashes]  # by tag
        self._seen = defaultdict(partial(SeenHashes, scratch_dir))
        self.held_out = HeldOutPairs(self._normalization)

    def clean(
        self,
        pairs: Iterable[BytesPair],
        counts: PairCounts,
        *,
        config: CleaningConfig | None = None,
        tag: str | None = None,
        checks: Sequence[Check] = (),
        score: Score | None = None,
    ) -> Iterator[BytesPair]:
        """Yield the pairs that remain of a text, cleaned and in order.

        Args:
            pairs: Source and target of each pair, without tags.
            counts: Increased, and complete when the iterator has ended.
            config: Settings of this text; by default the settings of all texts.
            tag: The tag that all sources of this text will have.
            checks: Further checks of single pairs.
            score: Returns the scores of pairs, by their numbers among `pairs` from 0 on.
        """
        config, numbers = config or self._config, list[int]()
        passed = passing(pairs, counts, config, self._normalization, checks, numbers)
        options: dict[str, Any] = {"config": config, "tag": tag, "score": score}
        yield from self.distinct(passed, counts, numbers=numbers, **options)

    def distinct(
        self,
        pairs: Iterable[BytesPair],
        counts: PairCounts,
        *,
        config: CleaningConfig,
        tag: str | None,
        score: Score | None = None,
        numbers: list[int] | None = None,
    ) -> Iterator[BytesPair]:
        """Yield the pairs that break none of the rules about other pairs and scores.

        `numbers` grows with the pairs that are read.
        """
        for chunk in in_chunks(pairs):
            left = _Left(chunk, np.array(numbers or (), dtype=np.int64), counts)
            if numbers is not None:
                numbers.clear()
            if self._protected is not None:
                seen = [self._protected.look_up(side)[1] for side in zip(*chunk, strict=True)]
                left.keep(~(seen[0] | seen[1]), "protected")
            hashes = hash_texts(left.pairs)
            counts.in_held_out += self.held_out.find(hashes)
            if config.drop_duplicates or self.unique is not None:
                left.keep(self._seen[tag].add(hashes), "duplicate")
            if self.unique is None or self.unique.is_open:
                scores = np.zeros(len(left.pairs))
                if score is not None:
                    scores = np.array(score(left.pairs, left.numbers))
                if score is not None and config.min_score is not None:
                    scores = scores[left.keep(scores >= config.min_score, "low_score")]
                if self.unique is not None:
                    self.unique.add(left.pairs, tag, scores)
            else:
                is_known, is_chosen = self.unique.look_up(left.pairs, tag)
                left.keep(is_known, "low_score")  # which was not added
                left.keep(is_chosen[is_known], "repeated_side")
            counts.kept += len(left.pairs)
            yield from left.pairs

    def see(self, pairs: list[BytesPair], *, tag: str | None) -> None:
        """Record the pairs of clean text, with a tag added; later copies count as duplicates."""
        self._seen[tag].add(hash_texts(pairs))
        if self.unique is not None and self.unique.is_open:
            self.unique.add(pairs, tag, [math.inf] * len(pairs))


def clean_lines(
    lines: Iterable[bytes],
    counts: PairCounts,
    config: CleaningConfig,
    normalization: Normalization,
    checks: Sequence[Check],
    protected: SeenText | None = None,
    *,
    scratch_dir: Path | None = None,
) -> Iterator[bytes]:
    """Yield the lines of monolingual text that break no rule, as `Cleaner.clean` does for pairs."""
    # A pair of a line and itself breaks no rule about two sides but the rule against copies.
    config = replace(config, drop_copies=False)
    cleaner = Cleaner(config, normalization, scratch_dir=scratch_dir, protected=protected)
    for line, _ in cleaner.clean(((line, line) for line in lines), counts, checks=checks):
        yield line


def passing(
    pairs: Iterable[BytesPair],
    counts: PairCounts,
    config: CleaningConfig,
    normalization: Normalization,
    checks: Sequence[Check] = (),
    numbers: list[int] | None = None,
) -> Iterator[BytesPair]:
    """Yield the pairs that pass the rules that look at a single pair; count the others.

    The number of each yielded pair, among the pairs that `counts` has read, is added to `numbers`.
    """
    for pair in pairs:
        counts.read += 1
        if unusable := [side for side in pair if isinstance(side, UnusableLine)]:
            counts.drop(unusable[0].rule, pair)
            continue
        # Before text is normalized, which drops or decodes the control characters of such text.
        if config.drop_mojibake and any(is_mojibake(s.decode(errors="ignore")) for s in pair):
            counts.drop("mojibake", pair)
            continue
        try:
            before = [pair[0].decode(), pair[1].decode()]
        except UnicodeDecodeError:
            counts.drop("not_utf8", pair)
            continue
        texts = [*map(decode_entities, before)] if config.decode_entities else before
        counts.entities += texts != before
        source, target = map(normalization.normalize, texts)
        if [source, target] != before:
            counts.normalized += 1
            counts.windows_1252 += any(map(normalization.finds_windows_1252, before))
            pair = source.encode(), target.encode()
        rule = _first_broken_rule(source, target, config)
        if rule is None and checks:
            rule = next((rule for rule, is_broken in checks if is_broken(source, target)), None)
        if rule is not None:
            counts.drop(rule, pair)
            continue
        if numbers is not None:
            numbers.append(counts.read - 1)
        yield pair


def _first_broken_rule(source: str, target: str, config: CleaningConfig) -> str | None:
    if config.drop_empty and not (source.strip() and target.strip()):
        return "empty"
    if config.max_characters and max(len(source), len(target)) > config.max_characters:
        return "too_long"
    if config.drop_copies and source == target:
        return "copy"
    return None


@dataclass
class _Left:
    """The pairs that are left of a chunk, and their numbers in the text."""

    pairs: list[BytesPair]
    numbers: Numbers
    counts: PairCounts

    def keep(self, is_kept: npt.NDArray[np.bool_], rule: str) -> npt.NDArray[np.bool_]:
        """Keep some of the pairs, and count the others as dropped; return which are kept."""
        for pair in compress(self.pairs, (~is_kept).tolist()):
            self.counts.drop(rule, pair)
        self.pairs = list(compress(self.pairs, is_kept.tolist()))
        self.numbers = self.numbers[is_kept] if len(self.numbers) else self.numbers
        return is_kept


class HeldOutPairs:
    """Finds the pairs of validation and test text that are also in the training text.

    Args:
        normalization: How the training text is normalized; held-out pairs are compared so.

    Attributes:
        sample: The first pairs of all splits.
    """

    def __init__(self, normalization: Normalization) -> None:
        self._normalize = normalization.normalize
        self.sample: list[BytesPair] = []
        # The sorted hashes of each split, and whether each is in the training text.
        self._hashes: dict[str, Hashes] = {}
        self._found: dict[str, npt.NDArray[np.bool_]] = {}

    def add(self, split: str, pairs: list[BytesPair]) -> None:
        """Add pairs of UTF-8 text to a split, before any training text is looked at."""
        normalize = self._normalize
        pairs = [(normalize(s.decode()).encode(), normalize(t.decode()).encode()) for s, t in pairs]
        self.sample += pairs[: _SAMPLE_PAIRS - len(self.sample)]
        known = self._hashes.get(split, hash_texts([]))
        self._hashes[split] = np.sort(np.concatenate((known, hash_texts(pairs))))
        self._found[split] = np.zeros(len(self._hashes[split]), dtype=np.bool_)

    def find(self, hashes: Hashes) -> int:
        """Look for [N] hashes of training pairs; return how many of them are in any split."""
        is_found = np.zeros(len(hashes), dtype=np.bool_)
        for split, held_out in self._hashes.items():
            first = np.searchsorted(held_out, hashes, side="left")
            end = np.searchsorted(held_out, hashes, side="right")
            is_found |= first < end
            for start, stop in zip(first[first < end], end[first < end], strict=True):
                self._found[split][start:stop] = True
        return int(is_found.sum())

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return {split: (number of its pairs in the training text, number of its pairs)}."""
        return {split: (int(found.sum()), len(found)) for split, found in self._found.items()}


def look_swapped(pairs: Sequence[BytesPair], others: Sequence[BytesPair]) -> bool:
    """Return whether the sides of pairs are swapped: sources resemble the targets of others.

    Trigrams of bytes tell any two languages apart; few pairs tell nothing.
    """
    if min(len(pairs), len(others)) < _MIN_SAMPLE_PAIRS:
        return False
    source, target, other_source, other_target = (
        _trigrams(pair[side] for pair in some[:_SAMPLE_PAIRS])
        for some in (pairs, others)
        for side in (0, 1)
    )
    straight = _similarity(source, other_source) + _similarity(target, other_target)
    crossed = _similarity(source, other_target) + _similarity(target, other_source)
    return crossed > _SWAP_MARGIN * straight


def _trigrams(lines: Iterable[bytes]) -> _Trigrams:
    return Counter(chain.from_iterable(zip(line, line[1:], line[2:]) for line in lines))  # noqa: B905


def _similarity(one: _Trigrams, other: _Trigrams) -> float:
    """Return the cosine of the angle between two counts."""
    norms = (math.hypot(*counts.values()) for counts in (one, other))
    return sum(count * other[each] for each, count in one.items()) / (math.prod(norms) or 1.0)
