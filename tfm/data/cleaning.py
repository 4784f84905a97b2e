"""Cleaning of training text: which pairs stay, and a count for each rule that drops one."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tfm.config import CleaningConfig
from tfm.data.text import BytesPair, in_chunks

RULES = ("not_utf8", "empty", "too_long", "length_ratio", "copy", "duplicate")

# All that Unicode or Python takes for white space: inside a line, U+2028 is no end of line.
_SPACES = re.compile("[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# Controls, soft hyphens, zero-width spaces, byte order marks and marks of direction. The joiners
# U+200C and U+200D stay: Persian, Indic scripts and emoji are spelled with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_RATIO_ALLOWANCE = 10


@dataclass(kw_only=True)
class PairCounts:
    """What became of the pairs of one text: `read` is `kept` and all of `dropped` together."""

    read: int = 0
    normalized: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    kept: int = 0

    def add(self, other: "PairCounts") -> None:
        """Add the counts of another text."""
        self.read += other.read
        self.normalized += other.normalized
        self.kept += other.kept
        for rule, count in other.dropped.items():
            self.dropped[rule] += count


class Cleaner:
    """Drops the pairs of a corpus that would harm training.

    The rules apply in this order, and a pair counts for the first that drops it:

    1. not_utf8: a side is not UTF-8.
    2. Space is normalized, which drops nothing: separators, tabs and all kinds of space become one
       space, none at the ends; control characters and invisible marks go. Nothing else changes.
    3. empty: a side has no text.
    4. too_long: a side has more than `max_characters`.
    5. length_ratio: one side is more than `max_length_ratio` times as long as the other, both with
       10 characters added, so that short sentences may differ more.
    6. copy: both sides are the same.
    7. duplicate: the same pair came before, in this text or in another one cleaned by this object.

    Args:
        config: Which rules apply, and their limits.
    """

    def __init__(self, config: CleaningConfig) -> None:
        self._config = config
        self._seen = SeenHashes()
        self.held_out = HeldOutPairs(config)

    def clean(self, pairs: Iterable[BytesPair], counts: PairCounts) -> Iterator[BytesPair]:
        """Go through a text.

        Args:
            pairs: Source and target lines without their line ends, as read from the files.
            counts: Where to count; exact once the iterator has ended.

        Yields:
            The pairs that stay, as UTF-8, in their order.
        """
        for chunk in in_chunks(self._passing(pairs, counts)):
            hashes = _pair_hashes(chunk)
            self.held_out.find(hashes)
            if not self._config.drop_duplicates:
                counts.kept += len(chunk)
                yield from chunk
                continue
            new = self._seen.add(hashes)
            num_new = int(new.sum())
            counts.kept += num_new
            counts.dropped["duplicate"] += len(chunk) - num_new
            yield from (pair for pair, is_new in zip(chunk, new.tolist(), strict=True) if is_new)

    def _passing(self, pairs: Iterable[BytesPair], counts: PairCounts) -> Iterator[BytesPair]:
        """The pairs that pass all rules that look at one pair alone."""
        normalize = self._config.normalize_space
        for pair in pairs:
            counts.read += 1
            try:
                source, target = before = pair[0].decode(), pair[1].decode()
            except UnicodeDecodeError:
                counts.dropped["not_utf8"] += 1
                continue
            if normalize:
                source, target = normalize_space(source), normalize_space(target)
                if (source, target) != before:
                    counts.normalized += 1
                    pair = source.encode(), target.encode()
            rule = self._broken_rule(source, target)
            if rule is None:
                yield pair
            else:
                counts.dropped[rule] += 1

    def _broken_rule(self, source: str, target: str) -> str | None:
        config = self._config
        if config.drop_empty and not (source.strip() and target.strip()):
            return "empty"
        short, long = len(source), len(target)
        if short > long:
            short, long = long, short
        if config.max_characters and long > config.max_characters:
            return "too_long"
        ratio = config.max_length_ratio
        if ratio and long + _RATIO_ALLOWANCE > ratio * (short + _RATIO_ALLOWANCE):
            return "length_ratio"
        if config.drop_copies and source == target:
            return "copy"
        return None


def normalize_space(text: str) -> str:
    """Make every run of white space one space, none at the ends, and drop invisible characters."""
    # To Python, all that the patterns find is unprintable, but for the space itself: a clean line
    # costs no more than this test.
    if text.isprintable() and "  " not in text and text[:1] != " " != text[-1:]:
        return text
    return _SPACES.sub(" ", _INVISIBLE.sub("", text)).strip(" ")


class HeldOutPairs:
    """Finds the pairs of validation and test text that the training text has, too.

    Args:
        config: The cleaning of the training text, whose spaces are compared.
    """

    def __init__(self, config: CleaningConfig) -> None:
        self._normalizes = config.normalize_space
        # Of each split, sorted, and whether each is in the training text.
        self._hashes: dict[str, npt.NDArray[np.uint64]] = {}
        self._found: dict[str, npt.NDArray[np.bool_]] = {}

    def add(self, split: str, pairs: list[BytesPair]) -> None:
        """Add pairs of UTF-8 text to a split, before any training text is looked at."""
        if self._normalizes:
            pairs = [
                (normalize_space(s.decode()).encode(), normalize_space(t.decode()).encode())
                for s, t in pairs
            ]
        known = self._hashes.get(split, _pair_hashes([]))
        self._hashes[split] = np.sort(np.concatenate((known, _pair_hashes(pairs))))
        self._found[split] = np.zeros(len(self._hashes[split]), dtype=np.bool_)

    def find(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Look for [N] hashes of training pairs in all splits."""
        for split, held_out in self._hashes.items():
            first = np.searchsorted(held_out, hashes, side="left")
            end = np.searchsorted(held_out, hashes, side="right")
            for start, stop in zip(first[first < end], end[first < end], strict=True):
                self._found[split][start:stop] = True

    def counts(self) -> dict[str, int]:
        """Return the number of pairs of each split that are in the training text."""
        return {split: int(found.sum()) for split, found in self._found.items()}


class SeenHashes:
    """A set of 64-bit hashes, at 8 bytes each, and about twice that while runs merge.

    It keeps sorted runs, each more than twice as long as the next, so that there are few to search
    and each hash is merged a logarithmic number of times. Among 36 million different pairs, the
    chance that any two share a hash is about 1 in 28,000.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []

    def add(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Add [N] hashes to the set; [N], true for the first of each that was not in it before."""
        values, first_places = np.unique(hashes, return_index=True)
        unseen = np.ones(len(values), dtype=np.bool_)
        for run in self._runs:
            places = np.searchsorted(run, values)
            places[places == len(run)] = 0
            unseen &= run[places] != values
        self._insert(values[unseen])
        is_new = np.zeros(len(hashes), dtype=np.bool_)
        is_new[first_places[unseen]] = True
        return is_new

    def _insert(self, run: npt.NDArray[np.uint64]) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate((self._runs.pop(), run))
            run.sort(kind="stable")  # which merges runs that are sorted already
        if len(run):
            self._runs.append(run)


def _pair_hashes(pairs: list[BytesPair]) -> npt.NDArray[np.uint64]:
    blake2b = hashlib.blake2b
    digests = (blake2b(s + b"\n" + t, digest_size=8).digest() for s, t in pairs)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
