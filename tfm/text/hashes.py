"""64-bit hashes of texts, and a set of them in bounded memory."""

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_MAX_HASHES_IN_MEMORY = 1 << 22
_HASHES_AT_ONCE = 1 << 20  # while runs in files are merged


def hash_texts(texts: Iterable[Sequence[bytes]], tag: str | None = None) -> Hashes:
    """Return a hash of each text in parts, other ones with a tag."""
    start, blake2b = f"{tag}\n".encode() if tag else b"", hashlib.blake2b
    digests = (blake2b(start + b"\n".join(text), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


class SeenHashes:
    """A set of 64-bit hashes in bounded memory.

    Hashes are kept in sorted arrays ("runs"), each more than twice as long as the next: there are
    few to search, and each hash is merged a logarithmic number of times. Long runs are in unnamed
    files in a folder, which are mapped into memory: the system keeps as much of them as fits. Among
    100 million distinct pairs, the probability that any two have equal hashes is about 1 in 3,700.
    """

    def __init__(self, scratch_dir: Path | None = None) -> None:
        self._scratch_dir = scratch_dir
        self._runs: list[Hashes] = []

    def add(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Add hashes [N] to the set; return [N], True for the first occurrence of new hashes."""
        values, first_indices = np.unique(hashes, return_index=True)
        unseen = np.ones(len(values), dtype=np.bool_)
        for run in self._runs:
            indices = np.searchsorted(run, values)
            indices[indices == len(run)] = 0
            unseen &= run[indices] != values
        self._insert(values[unseen])
        is_new = np.zeros(len(hashes), dtype=np.bool_)
        is_new[first_indices[unseen]] = True
        return is_new

    def _insert(self, run: Hashes) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            longer = self._runs.pop()
            if len(longer) + len(run) > _MAX_HASHES_IN_MEMORY:
                run = self._merged_in_file(longer, run)
            else:
                run = np.concatenate((longer, run))
                run.sort(kind="stable")  # merges sorted runs in linear time
        if len(run):
            self._runs.append(run)

    def _merged_in_file(self, one: Hashes, other: Hashes) -> Hashes:
        """Merge two runs in a file that has no name, so that nothing has to remove it."""
        with tempfile.TemporaryFile(dir=self._scratch_dir) as file:
            start = 0
            for index in range(0, len(one), _HASHES_AT_ONCE):
                chunk = one[index : index + _HASHES_AT_ONCE]
                is_last = index + len(chunk) == len(one)
                end = len(other) if is_last else int(np.searchsorted(other, chunk[-1]))
                merged = np.concatenate((chunk, other[start:end]))
                merged.sort(kind="stable")
                file.write(merged.tobytes())
                start = end
            file.flush()
            return np.asarray(np.memmap(file, dtype=np.uint64, mode="r"))
