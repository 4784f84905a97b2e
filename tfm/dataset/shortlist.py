"""Shortlists: the target pieces that each source piece can become, by IBM model 1.

The model of Brown et al. (1993) is trained on the token ids of the training text by expectation
maximization. The EOS of each source stands for its empty word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from tfm.dataset.parallel import Integers, ParallelDataset, id_dtype
from tfm.disk.files import atomic_write
from tfm.errors import DataError
from tfm.reporting import Progress
from tfm.vocabulary.subword import EOS, UNK, Vocabulary

FILE = "shortlist.safetensors"
FORMAT = "1"

_NUM_ITERATIONS = 4
_SEED = 1
# Co-occurrences of a source and a target token that are counted together.
_CHUNK_SIZE = 1 << 22
# Pairs of pieces with a probability: of more, the rarest are dropped. This bounds the memory.
_MAX_ENTRIES = 1 << 24

Ids = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The target pieces that source pieces can become.

    Attributes:
        candidates: [V source, N] ids of target pieces for each source piece, filled up with EOS.
        frequent: [M] ids of target pieces for every sentence.
        fingerprint: Fingerprint of the vocabulary.
    """

    candidates: Ids
    frequent: Ids
    fingerprint: str

    @classmethod
    def load(
        cls, folder: Path, fingerprint: str, vocab_sizes: tuple[int, int]
    ) -> "Shortlist | None":
        """Read the shortlist of a dataset or model folder with a vocabulary; None without one."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            with safe_open(path, "np") as file:
                metadata = file.metadata() or {}
                shortlist = cls(
                    file.get_tensor("candidates"),
                    file.get_tensor("frequent"),
                    metadata.get("vocabulary", ""),
                )
        except SafetensorError as error:
            raise DataError(f"{path} is damaged: {_REMEDY}") from error
        if metadata.get("format") != FORMAT:
            raise DataError(f"{path} is not of format {FORMAT}: {_REMEDY}")
        if shortlist.fingerprint != fingerprint:
            raise DataError(
                f"{path} is for subword model {shortlist.fingerprint[:8]}, not "
                f"{fingerprint[:8]}: {_REMEDY}"
            )
        for ids, shape in ((shortlist.candidates, (vocab_sizes[0],)), (shortlist.frequent, ())):
            if (
                (ids.ndim, ids.shape[:-1]) != (len(shape) + 1, shape)
                or ids.dtype.kind not in "iu"
                or (ids.size and not 0 <= ids.min() <= ids.max() < vocab_sizes[1])
            ):
                raise DataError(f"{path} has numbers that are no ids of pieces: {_REMEDY}")
        return shortlist

    def save(self, folder: Path) -> None:
        """Write the shortlist into a dataset folder."""
        tensors = {"candidates": self.candidates, "frequent": self.frequent}
        metadata = {"format": FORMAT, "vocabulary": self.fingerprint}
        with atomic_write(folder / FILE) as file:
            file.write(safetensors.numpy.save(tensors, metadata))

    def allowed(self, sources: Ids, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Return [B, V] which target pieces the shortlist has for sources [B, S]."""
        allowed = np.zeros((len(sources), vocab_size), dtype=bool)
        candidates = self.candidates[sources].reshape(len(sources), -1)
        np.put_along_axis(allowed, candidates.astype(np.int64), values=True, axis=1)
        allowed[:, self.frequent] = True
        return allowed


_REMEDY = "learn it with tfm binarize DATA --shortlist --force, or remove it"


def shortlist_files(folder: Path, vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return {file name: content} of the shortlist of a folder; empty without one."""
    sizes = (len(vocabulary.source), len(vocabulary.target))
    shortlist = Shortlist.load(folder, vocabulary.fingerprint, sizes)
    return {} if shortlist is None else {FILE: (folder / FILE).read_bytes()}


def learn_shortlist(
    dataset: ParallelDataset,
    vocabulary: Vocabulary,
    *,
    size: int,
    num_frequent: int,
    max_pairs: int,
) -> Shortlist:
    """Learn a shortlist from the pairs of a dataset, or from a random sample of `max_pairs`.

    Args:
        dataset: Training text.
        vocabulary: Its vocabulary; if it is joint, each piece may also be copied.
        size: Most probable target pieces to keep for each source piece.
        num_frequent: Most frequent target pieces to keep for all sentences.
        max_pairs: Maximum number of pairs to learn from.
    """
    indices = np.arange(len(dataset))
    if len(indices) > max_pairs:
        sample = np.random.default_rng(_SEED).choice(len(indices), max_pairs, replace=False)
        indices = np.sort(sample)
    num_source, num_target = len(vocabulary.source), len(vocabulary.target)
    table = _learn(dataset, indices, num_source, num_target)
    sources, targets = np.divmod(table.keys, num_target)
    frequency = np.bincount(targets, table.values, minlength=num_target)
    frequency[[EOS, UNK]] = 0
    frequent = np.argsort(-frequency, kind="stable")[:num_frequent]
    # Candidates are chosen among the others.
    is_other = ~np.isin(targets, [EOS, UNK, *frequent])
    sources, targets, counts = sources[is_other], targets[is_other], table.values[is_other]
    order = np.lexsort((-counts, sources))
    sources, targets = sources[order], targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    is_kept = ranks < size
    dtype = id_dtype(num_target)
    candidates = np.full((num_source, size), EOS, dtype=dtype)
    candidates[sources[is_kept], ranks[is_kept]] = targets[is_kept]
    if vocabulary.is_joint:
        itself = np.arange(num_source, dtype=dtype)[:, None]
        candidates = np.concatenate([candidates, itself], axis=1)
    return Shortlist(candidates, frequent.astype(dtype), vocabulary.fingerprint)


class _Table(NamedTuple):
    """Values of pairs of pieces."""

    keys: npt.NDArray[np.int64]  # [N] source id · number of target pieces + target id, ascending
    values: Floats  # [N]

    def at(self, keys: npt.NDArray[np.int64]) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the places [K] of ascending keys [K], and whether they are present."""
        places = np.searchsorted(self.keys, keys).clip(max=max(0, len(self.keys) - 1))
        return places, self.keys[places] == keys


class _CoOccurrences(NamedTuple):
    """All pairs of a source and a target token of some sentence pairs, by target token."""

    keys: npt.NDArray[np.int64]  # [K] distinct keys, ascending
    places: Integers  # [N] the key of each co-occurrence
    lengths: Integers  # [T] number of co-occurrences of each target token

    def expected_counts(self, probabilities: Floats) -> Floats:
        """Return the expected counts [K] of alignments, given probabilities [K] (the E step)."""
        probability = probabilities[self.places]
        starts = np.cumsum(self.lengths) - self.lengths
        totals = np.add.reduceat(probability, starts)
        # A target token whose pairs were all dropped is not counted.
        weights = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0)
        probability *= np.repeat(weights, self.lengths)
        counts = np.bincount(self.places, probability, minlength=len(self.keys))
        return counts.astype(np.float64, copy=False)


def _learn(dataset: ParallelDataset, indices: Integers, num_source: int, num_target: int) -> _Table:
    """Return the expected number of alignments of each pair of pieces."""
    total = _NUM_ITERATIONS * len(indices)
    with Progress("shortlist", total=total, unit="pairs") as bar:
        table = _initial_counts(dataset, indices, num_target, bar)
        for _ in range(_NUM_ITERATIONS - 1):
            sources = table.keys // num_target
            totals = np.bincount(sources, table.values, minlength=num_source)
            probabilities = table.values / totals[sources].clip(min=np.finfo(np.float64).tiny)
            counts = np.zeros_like(table.values)
            for chunk in _chunks(dataset, indices):
                found = _co_occurrences(dataset, chunk, num_target)
                places, is_present = table.at(found.keys)
                new = found.expected_counts(probabilities[places] * is_present)
                counts[places[is_present]] += new[is_present]
                bar.update(len(chunk))
            table = _Table(table.keys, counts)
    return table


def _initial_counts(
    dataset: ParallelDataset, indices: Integers, num_target: int, bar: Progress
) -> _Table:
    """Return the counts of the first iteration, with uniform probabilities."""
    table = _Table(np.zeros(0, dtype=np.int64), np.zeros(0))
    parts = [table]
    for chunk in _chunks(dataset, indices):
        found = _co_occurrences(dataset, chunk, num_target)
        parts.append(_Table(found.keys, found.expected_counts(np.ones(len(found.keys)))))
        # Merging only when the parts are as long as the table keeps the number of merges low.
        if sum(len(part.keys) for part in parts[1:]) > len(parts[0].keys):
            parts = [_merge(parts)]
        bar.update(len(chunk))
    return _merge(parts)


def _merge(parts: list[_Table]) -> _Table:
    """Add tables up; of too many entries, keep the greatest."""
    keys, index = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    values = np.bincount(index, np.concatenate([part.values for part in parts]), len(keys)).astype(
        np.float64, copy=False
    )
    if len(keys) > _MAX_ENTRIES:
        is_kept = values > np.partition(values, -_MAX_ENTRIES)[-_MAX_ENTRIES]
        keys, values = keys[is_kept], values[is_kept]
    return _Table(keys, values)


def _chunks(dataset: ParallelDataset, indices: Integers) -> Iterator[Integers]:
    """Cut the indices of pairs into chunks of about `_CHUNK_SIZE` co-occurrences."""
    lengths = (dataset.source.lengths(indices) + 1) * (dataset.target.lengths(indices) + 1)
    chunks = np.cumsum(lengths) // _CHUNK_SIZE
    yield from np.split(indices, np.flatnonzero(np.diff(chunks)) + 1)


def _co_occurrences(dataset: ParallelDataset, indices: Integers, num_target: int) -> _CoOccurrences:
    """Return the co-occurrences of tokens in some sentence pairs."""
    source, source_lengths = dataset.source.concatenate(indices)
    target, target_lengths = dataset.target.concatenate(indices)
    # For each target token, the tokens of its source.
    lengths = np.repeat(source_lengths, target_lengths)
    source_starts = np.repeat(np.cumsum(source_lengths) - source_lengths, target_lengths)
    shifts = source_starts - (np.cumsum(lengths) - lengths)
    positions = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
    keys = source[positions] * num_target + np.repeat(target, lengths)
    distinct, index = np.unique(keys, return_inverse=True)
    return _CoOccurrences(distinct, index, lengths)
