"""The record of the training text, in which other text is looked up: a Bloom filter.

Each hash sets bit N, or N + 4 if it is odd, of the byte that the N-th of 4 functions chooses. If
all its bits are set, it was added, or is a false hit. Records of a size and step are joined by OR.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import safe_open

from tfm.config import Values
from tfm.disk.files import atomic_write
from tfm.errors import DataError
from tfm.reporting import Progress, say
from tfm.text.line_hashes import Hashes, hash_lines
from tfm.text.lines import read_blocks

FILE = "seen.safetensors"
FORMAT = 1

_NEARLY = 0.8  # of the 4-grams of a line make it nearly seen
# Hashes in a byte if there is room, with 4-grams, and at most. Then 1 in 2,000, 100 or 20 other
# hashes is a false hit.
_IDEAL_RATE, _FULL_RATE, _MAX_RATE = 0.33, 0.75, 1.25
# 1 of N of the 4-grams are in a record. If N > 1, a line is judged by them if there are enough.
_STEPS, _NO_GRAMS, _MIN_SAMPLED = (1, 2, 4), 1 << 32, 5
_SAMPLE_BYTES, _NUM_SAMPLES = 1 << 12, 16  # of a text file
_ODD = np.uint64(8)  # the bit that says whether a hash is odd: lower ones are 0 in a sample
_LINES_AT_ONCE = 1_000  # whose hashes fit into the CPU's caches

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class SeenText:
    """A record of lines and of their 4-grams.

    Attributes:
        bits: [B] the filter.
        step: N; only 4-grams whose hash is a multiple of N are in it.
        origins: Records of the models that wrote some of the text and of their ancestors.
    """

    bits: npt.NDArray[np.uint8]
    step: int = 1
    origins: Sequence[Values] = ()

    @classmethod
    def of_pairs(
        cls, texts: Sequence[Sequence[Path]], *, max_bytes: int, origins: Sequence[Values]
    ) -> "SeenText | None":
        """Return the record of source and target files; None if `max_bytes` are too few for it."""
        num_lines, num_grams = np.sum([_estimate_hashes(path) for path in chain(*texts)], axis=0)
        if num_lines > _MAX_RATE * max_bytes:
            needed = ceil(num_lines / _MAX_RATE / (1 << 20))
            need = f"about {num_lines:,.0f} lines need --seen-megabytes {needed}"
            say(f"warning: the training text is not recorded: {need}")
            return None
        sizes = {n: num_lines + num_grams / n for n in (*_STEPS, _NO_GRAMS)}
        step = next((n for n in _STEPS if sizes[n] <= _FULL_RATE * max_bytes), _NO_GRAMS)
        size = 1 + ceil(sizes[step] / _IDEAL_RATE)
        bits = np.zeros(min(max_bytes, size), dtype=np.uint8)
        record = cls(bits=bits, step=step, origins=origins)
        with Progress("seen text", total=None, unit="pairs") as bar:
            for sources, targets in chain(*(read_blocks(*each, strict=True) for each in texts)):
                record.add(sources)
                record.add(targets)
                bar.update(len(sources))
        return record

    @classmethod
    def of_lines(cls, lines: Sequence[bytes]) -> "SeenText":
        """Return the record of a small text, which has hardly any false hits."""
        record = cls(bits=np.zeros(1024 + 4 * sum(map(len, lines)), dtype=np.uint8))
        record.add(lines)
        return record

    @classmethod
    def load(cls, path: Path) -> "SeenText":
        """Read a record that is intact; raise DataError if it is of another format."""
        with safe_open(path, "np") as file:
            record, bits = json.loads(file.metadata()["record"]), file.get_tensor("bits")
        if (written := record["format"]) != FORMAT:
            problem = f"has format {written}, but this tfm reads format {FORMAT}"
            raise DataError(f"{path} {problem}: make it again with tfm binarize --force")
        return cls(bits=bits, step=record["step"], origins=record["origins"])

    def save(self, path: Path) -> None:
        """Write the record."""
        record = {"format": FORMAT, "step": self.step, "origins": self.origins}
        metadata = {"record": json.dumps(record)}  # the order of several values would be random
        with atomic_write(path) as file:
            file.write(safetensors.numpy.save({"bits": self.bits}, metadata))

    def false_hits(self) -> float:
        """Return the rate of false hits of the filter, estimated from a part of it."""
        shares = np.unpackbits(self.bits[: 1 << 18, None], axis=1).mean(axis=0)
        return float(shares.reshape(2, 4).prod(axis=1).mean())

    def add(self, lines: Sequence[bytes]) -> None:
        """Add lines of UTF-8 text."""
        for start in range(0, len(lines), _LINES_AT_ONCE):
            of_lines, grams, _ = hash_lines(lines[start : start + _LINES_AT_ONCE])
            hashes = np.concatenate((of_lines, grams[grams % np.uint64(self.step) == 0]))
            is_odd = hashes & _ODD > 0
            for half in (hashes[is_odd], hashes[~is_odd]):  # which set the same bit in a byte
                for bits, places in self._places(half):
                    self.bits[places] = self.bits.take(places) | bits

    def look_up(self, lines: Sequence[bytes]) -> tuple[Flags, Flags]:
        """Return [N] which lines were seen exactly, and which were seen exactly or nearly.

        Of the former all 4-grams, and of the latter most, are in lines of the text.
        """
        of_lines, grams, owners = hash_lines(lines)
        is_sampled = grams % np.uint64(self.step) == 0
        counts = np.bincount(owners[is_sampled], minlength=len(lines))
        num_seen = np.bincount(owners[is_sampled & self._has(grams)], minlength=len(lines))
        exactly = (of_lines != 0) & self._has(of_lines) & (num_seen == counts)
        is_judged = counts >= (1 if self.step == 1 else _MIN_SAMPLED)
        return exactly, exactly | (is_judged & (num_seen >= _NEARLY * counts))

    def _has(self, hashes: Hashes) -> Flags:
        found = np.ones(len(hashes), dtype=np.bool_)
        for bits, places in self._places(hashes):
            found &= (self.bits.take(places) & bits) > 0
        return found

    def _places(self, hashes: Hashes) -> Iterator[tuple[npt.NDArray[np.uint8], Hashes]]:
        """Yield [N] bits of hashes, and [N] the bytes that have them, for each function."""
        half, size = np.uint64(32), np.uint64(len(self.bits))
        bits = np.where(hashes & _ODD, 16, 1).astype(np.uint8)
        distances = (hashes >> np.uint64(7)) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
        for number in range(4):
            yield bits << np.uint8(number), ((hashes >> half) * size >> half).view(np.int64)
            hashes = hashes + distances


def _estimate_hashes(path: Path) -> tuple[float, float]:
    """Return about how many lines and 4-grams a text file has, from samples of it."""
    size, samples = path.stat().st_size, list[bytes]()
    with path.open("rb") as file:
        for number in range(_NUM_SAMPLES):
            file.seek(max(number * _SAMPLE_BYTES, number * size // _NUM_SAMPLES))
            samples.append(file.read(_SAMPLE_BYTES))
    lines, scale = b"".join(samples).split(b"\n"), size / max(1, sum(map(len, samples)))
    return scale * len(lines), scale * len(hash_lines(lines)[1])
