"""Choosing pairs: the best of those that share a side, by their scores, and pairs to hold out."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tfm.disk.paths import existing_file
from tfm.errors import DataError
from tfm.text.hashes import Hashes, hash_texts
from tfm.text.line_hashes import hash_lines
from tfm.text.lines import BytesPair, read_lines

Sides = Literal["source", "target", "both"]
Flags = npt.NDArray[np.bool_]

_SIDES: dict[Sides, Sequence[int]] = {"source": (0,), "target": (1,), "both": (0, 1)}
_SPARE = 4  # times as many candidates as pairs to hold out, because some share a side


class UniqueSides:
    """Chooses one of the pairs that share a side: the best by their scores, else the first.

    A pair that shares its source with a better one, and its target with another, is chosen only if
    none of these is. All pairs have to be added and chosen before one is looked up. This takes 20
    bytes of memory a pair, or 28 for both sides.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = _SIDES[sides]
        none = np.zeros(0, np.uint64)
        self._hashes: list[list[Hashes]] = [[none], *([none] for _ in self._sides)]  # and of sides
        self._scores = [np.zeros(0, np.float32)]
        self._known, self._is_chosen = np.zeros(0, np.uint64), np.zeros(0, np.bool_)  # by hash
        self.is_open = True  # pairs are still added

    def add(self, pairs: Sequence[BytesPair], tag: str | None, scores: npt.ArrayLike) -> None:
        """Add different pairs and their scores; sources with other tags are other sources."""
        sides = ([pair[side : side + 1] for pair in pairs] for side in self._sides)
        for column, texts in zip(self._hashes, (pairs, *sides), strict=True):
            column.append(hash_texts(texts, tag))
        self._scores.append(np.array(scores, dtype=np.float32))

    def choose(self) -> None:
        """Choose among the pairs that were added."""
        pairs, *sides = map(np.concatenate, self._hashes)
        best_first = np.argsort(-np.concatenate(self._scores), kind="stable")
        # Numbers of the sides; memory views turn one at a time into an integer of Python.
        numbers = [np.unique(side, return_inverse=True)[1][best_first] for side in sides]
        columns = [each.data for each in (best_first, numbers[0], numbers[-1])]
        is_chosen, *is_taken = (bytearray(len(pairs)) for _ in range(3))
        for place, one, other in zip(*columns, strict=True):
            if not (is_taken[0][one] or is_taken[1][other]):
                is_chosen[place] = is_taken[0][one] = is_taken[1][other] = True
        order = np.argsort(pairs)
        self._known = np.append(pairs[order], ~np.uint64(0))  # so that every place exists
        self._is_chosen = np.append(np.frombuffer(is_chosen, np.bool_)[order], [False])
        self.is_open, self._hashes, self._scores = False, [], []

    def look_up(self, pairs: Sequence[BytesPair], tag: str | None) -> tuple[Flags, Flags]:
        """Return [N] which pairs were added, and [N] which of them were chosen."""
        hashes = hash_texts(pairs, tag)
        places = np.searchsorted(self._known, hashes)
        return self._known[places] == hashes, self._is_chosen[places]


class FileScores:
    """The numbers in a file, one per line and pair of the training text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = enumerate(read_lines(existing_file(path), strict=True), 1)
        self._numbers = np.fromiter((self._parsed(*line) for line in lines), dtype=np.float32)
        self.checksum = hashlib.sha256(self._numbers.tobytes()).hexdigest()

    def _parsed(self, number: int, line: bytes) -> float:
        with suppress(ValueError):
            if b"_" not in line and not math.isnan(score := float(line)):
                return score
        raise DataError(f"{self._path}, line {number:,} is no number: give one per training pair")

    def scores(
        self, start: int, _: Sequence[BytesPair], places: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Return the scores of pairs, by their places after the first `start` pairs of the text."""
        self.check(start + int(places.max(initial=-1)) + 1, "at least ")
        return self._numbers[start + places]

    def check(self, num_pairs: int, about: str = "") -> None:
        """Raise DataError unless there is a number for each pair of the text."""
        size = len(self._numbers)
        if num_pairs > size or (num_pairs < size and not about):
            raise DataError(
                f"{self._path} has {size:,} numbers, but the training text has {about}"
                f"{num_pairs:,} pairs: give a number for each"
            )


def choose_held_out(pairs: Iterable[BytesPair], number: int, seed: int) -> list[BytesPair]:
    """Return a number of random pairs in their order, no two of which share a side.

    Each source is equally probable, however often it occurs. Sides that differ in case, spaces or
    punctuation only are the same, and sides without words are left out.
    """
    salt, most = seed.to_bytes(8, "little"), _SPARE * number
    found: dict[bytes, tuple[int, BytesPair]] = {}  # by hashes, the least of which count
    limit = b"\xff" * 8
    for place, pair in enumerate(pairs):
        digest = hashlib.blake2b(pair[0], digest_size=8, salt=salt).digest()
        if digest <= limit and digest not in found:
            found[digest] = place, pair
            if len(found) == 2 * most:
                found = dict(sorted(found.items())[:most])
                limit = max(found)
    candidates = [found[digest] for digest in sorted(found)][:most]
    seen: set[int] = {0}  # the hash of a line without words
    chosen: list[tuple[int, BytesPair]] = []
    columns = (hash_lines([pair[side] for _, pair in candidates])[0].tolist() for side in (0, 1))
    for candidate, *hashes in zip(candidates, *columns, strict=True):
        if len(chosen) < number and seen.isdisjoint(hashes):
            seen.update(hashes)
            chosen.append(candidate)
    if len(chosen) < number:
        raise DataError(
            f"only {len(chosen):,} of {len(candidates):,} random training pairs share no side with "
            f"another one, but {number:,} are needed: choose fewer with --hold-out"
        )
    return [pair for _, pair in sorted(chosen)]
