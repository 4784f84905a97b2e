"""Binarized parallel text: token ids in memory-mapped files.

A split is in shards of a bounded number of pairs; most datasets have one. For each shard and
language, a folder holds `SHARD.LANGUAGE.tokens.npy` (the concatenated ids, of 16 or 32 bits without
a sign) and `SHARD.LANGUAGE.offsets.npy` (the start of each sentence, and the end, of 32 bits).
`dataset.json` is written last, with the format version, fingerprint of the vocabulary, and the
counts, extremes and checksums of each shard. Opening a split reads no token ids:
`ParallelDataset.verify` compares a shard with its record.
"""

import hashlib
import json
import mmap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from tfm.dataset.shards import ShardName, TrainingText
from tfm.disk.files import read_record, write_record
from tfm.errors import DataError, tfm_command
from tfm.text.corpus.texts import Language
from tfm.vocabulary.subword import EOS

FORMAT = 1
MAX_TOKENS = (1 << 32) - 1  # offsets have 32 bits

_KINDS = ("tokens", "offsets")
# NumPy evaluates the header of a file as a Python literal.
_DAMAGED_HEADER = (OverflowError, SyntaxError, TypeError, ValueError, tokenize.TokenError)

Ids = npt.NDArray[np.unsignedinteger[Any]]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ShardIds:
    """The record of the token ids of a shard; pairs of values are of source and target.

    Attributes:
        name: The first shard of a split has its name, and the next ones a number, as in "train.2".
        pairs: Number of sentence pairs.
        tokens: Numbers of tokens.
        longest: Numbers of tokens of the longest sentences.
        largest_id: Largest token ids; 0 without tokens.
        sha256: {file name: checksum} of its files.
    """

    name: ShardName
    pairs: int
    tokens: tuple[int, int]
    longest: tuple[int, int]
    largest_id: tuple[int, int]
    sha256: Mapping[str, str]

    @classmethod
    def of_files(cls, bin_dir: Path, name: str, languages: tuple[str, str]) -> "ShardIds":
        """Return the record of a shard by reading its files."""
        source, target = (_Side(bin_dir, name, language) for language in languages)
        return cls.of_sides(bin_dir, name, source, target)

    @classmethod
    def of_sides(cls, bin_dir: Path, name: str, source: "_Side", target: "_Side") -> "ShardIds":
        """Return the record of a shard whose files are open, as `of_files` does."""
        sides = (source, target)
        for side in sides:
            side.check()
        sizes = [len(side.offsets) - 1 for side in sides]
        if sizes[0] != sizes[1]:
            raise _needs_binarizing(
                bin_dir,
                f"{name} in {bin_dir} has {sizes[0]:,} source and {sizes[1]:,} target sentences",
            )
        tokens, longest, largest = zip(*(side.extremes() for side in sides), strict=True)
        return cls(
            name=name,
            pairs=sizes[0],
            tokens=tokens,
            longest=longest,
            largest_id=largest,
            sha256=source.checksums() | target.checksums(),
        )


def id_files(name: str, languages: tuple[str, str]) -> list[str]:
    """Return the names of the .npy files of a shard."""
    return [f"{name}.{language}.{kind}.npy" for language in languages for kind in _KINDS]


@dataclass(frozen=True, kw_only=True)
class DatasetIndex:
    """The content of `dataset.json`.

    Attributes:
        source: Source language.
        target: Target language.
        fingerprint: Fingerprint of the vocabulary.
        shards: {split: its shards in order}.
        texts: The texts that the training pairs come from, in order; empty if unknown.
    """

    source: Language
    target: Language
    fingerprint: str
    shards: Mapping[str, tuple[ShardIds, ...]]
    texts: tuple[TrainingText, ...] = ()

    @classmethod
    def load(cls, bin_dir: Path) -> "DatasetIndex":
        """Read the index of a binarized dataset."""
        path = bin_dir / "dataset.json"
        if not path.is_file():
            raise DataError(
                f"{bin_dir} holds no binarized dataset: run "
                + tfm_command("binarize", bin_dir.parent)
            )
        advice = f"run {tfm_command('binarize', bin_dir.parent, '--force')}"
        index = read_record(path, cls, format_=FORMAT, advice=advice)
        if problem := _inconsistency(index):
            raise _needs_binarizing(bin_dir, f"{path} is damaged ({problem})")
        return index

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source, self.target

    @property
    def num_pairs(self) -> dict[str, int]:
        """{split: number of sentence pairs}."""
        return {
            split: sum(shard.pairs for shard in shards) for split, shards in self.shards.items()
        }

    def checksum(self, split: str) -> str:
        """Return a hexadecimal digest of the pairs of a split, their order, and their options."""
        digests = "".join(
            shard.sha256[file]
            for shard in self.shards[split]
            for file in id_files(shard.name, self.languages)
        )
        texts = self.texts if split == "train" else ()
        if any(text.weight or text.augmentation for text in texts):
            digests += json.dumps([[each.kept, each.weight, each.augmentation] for each in texts])
        return hashlib.sha256(digests.encode()).hexdigest()

    def files(self) -> list[str]:
        """Return the names of all .npy files."""
        shards = chain.from_iterable(self.shards.values())
        return [file for shard in shards for file in id_files(shard.name, self.languages)]

    def save(self, bin_dir: Path) -> None:
        """Write the index."""
        write_record(bin_dir / "dataset.json", self, format_=FORMAT)


def _inconsistency(index: DatasetIndex) -> str | None:
    """Return the first inconsistency of an index; None if it has none."""
    if len(set(index.files())) < len(index.files()):
        return "two shards have the same name"
    for split, shards in index.shards.items():
        if not shards:
            return f"{split} has no shards"
        for shard in shards:
            if shard.name.partition(".")[0] != split:
                return f"{shard.name} is not a shard of {split}"
            if shard.sha256.keys() != set(id_files(shard.name, index.languages)):
                return f"sha256 of {shard.name} is of other files"
    if index.texts and sum(each.kept for each in index.texts) != index.num_pairs.get("train"):
        return "texts are of other pairs"
    return None


class _Side:
    """One language of a shard, mapped into memory without reading it.

    Its files are opened only here, so that they stay the same when others take their names.
    """

    def __init__(self, bin_dir: Path, name: str, language: str) -> None:
        self._bin_dir, self._name = bin_dir, f"{name}.{language}"
        (self.tokens, self.tokens_file), (self.offsets, self._offsets_file) = (
            _map_array(bin_dir / file) for file in self._file_names
        )

    @property
    def _file_names(self) -> list[str]:
        return [f"{self._name}.{kind}.npy" for kind in _KINDS]

    def checksums(self) -> dict[str, str]:
        """Return {file name: SHA-256}."""
        files = (self.tokens_file, self._offsets_file)
        digests = (hashlib.sha256(file).hexdigest() for file in files)
        return dict(zip(self._file_names, digests, strict=True))

    def check(self) -> None:
        """Raise DataError unless the offsets match the tokens; this reads all offsets."""
        offsets = self.offsets
        has_ends = len(offsets) and offsets[0] == 0 and offsets[-1] == len(self.tokens)
        if not has_ends or (offsets[1:] < offsets[:-1]).any():
            raise self.damage()

    def damage(self) -> DataError:
        """Return the error for offsets that do not fit the tokens."""
        return _needs_binarizing(
            self._bin_dir, f"the offsets of {self._bin_dir}/{self._name} do not fit its tokens"
        )

    def foreign_ids(self, vocab_size: int) -> DataError:
        """Return the error for ids outside a vocabulary."""
        return _needs_binarizing(
            self._bin_dir,
            f"{self._bin_dir}/{self._name} has ids outside the vocabulary of {vocab_size:,} pieces",
        )

    def will_need(self, starts: Integers, ends: Integers) -> None:
        """Ask the system to read the tokens of ranges [R] of sentences into its cache."""
        if not hasattr(mmap, "MADV_WILLNEED"):  # as on Windows
            return
        first = self.offsets[starts]
        last = self.offsets[np.minimum(ends, len(self.offsets) - 1)]
        if (first > last).any():
            raise self.damage()
        header, has_tokens = len(self.tokens_file) - self.tokens.nbytes, first < last
        places = header + self.tokens.itemsize * np.stack([first, last], 1)[has_tokens].astype(int)
        for start, end in places.tolist():
            begin = start - start % mmap.PAGESIZE
            self.tokens_file.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def extremes(self) -> tuple[int, int, int]:
        """Return the number of tokens, the length of the longest sentence, and the largest id."""
        longest = np.diff(self.offsets).max(initial=0)
        return len(self.tokens), int(longest), int(self.tokens.max(initial=0))


class TokenSequences:
    """The sentences of one language of a split, as token ids, shard after shard.

    Args:
        bin_dir: Folder of the files.
        shards: Records of the shards.
        language: The language.
        side: 0 for the source, 1 for the target.
        vocab_size: Size of its vocabulary.
    """

    def __init__(
        self,
        bin_dir: Path,
        shards: Sequence[ShardIds],
        language: str,
        side: int,
        *,
        vocab_size: int,
    ) -> None:
        self._sides = [_Side(bin_dir, shard.name, language) for shard in shards]
        self._starts = np.cumsum([0, *(shard.pairs for shard in shards)])
        self._vocab_size = vocab_size
        self.longest = max((shard.longest[side] for shard in shards), default=0)
        for shard, files in zip(shards, self._sides, strict=True):
            if (len(files.tokens), len(files.offsets)) != (shard.tokens[side], shard.pairs + 1):
                raise files.damage()
            if shard.largest_id[side] >= vocab_size:
                raise files.foreign_ids(vocab_size)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def side(self, number: int) -> _Side:
        """Return the files of a shard by its number from 0."""
        return self._sides[number]

    def lengths(self, indices: Integers) -> Integers:
        """Return the numbers of tokens of sentences [B]."""
        lengths = np.empty(len(indices), dtype=np.int64)
        for side, places, local in self._by_shard(indices):
            sizes = side.offsets.take(local + 1) - side.offsets.take(local)  # < 0 is a large number
            if sizes.max(initial=0) > self.longest:
                raise side.damage()
            lengths[places] = sizes
        return lengths

    def concatenate(self, indices: Integers) -> tuple[Integers, Integers]:
        """Concatenate the sentences [B], each followed by EOS.

        Returns:
            [N] token ids, and [B] lengths of the sentences with EOS.
        """
        lengths = self.lengths(indices) + 1
        ends = lengths.cumsum()
        ids = np.full(lengths.sum(), EOS, dtype=np.int64)
        for side, places, local in self._by_shard(indices):
            sizes = lengths[places] - 1
            starts = sizes.cumsum() - sizes
            numbers = np.arange(sizes.sum())
            try:
                shifts = side.offsets.take(local) - starts
                tokens = side.tokens.take(numbers + shifts.repeat(sizes))
            except IndexError:
                raise side.damage() from None
            if tokens.max(initial=0) >= self._vocab_size:
                raise side.foreign_ids(self._vocab_size)
            shifts = ends[places] - lengths[places] - starts
            ids[numbers + shifts.repeat(sizes)] = tokens.astype(np.int64)
        return ids, lengths

    def will_need(self, indices: Integers, sizes: Integers) -> None:
        """Ask the system to read runs [R] of sentences into its cache, for use soon.

        Args:
            indices: [R] the first index of each; only the shard that has it is read.
            sizes: [R] numbers of sentences.
        """
        for side, places, local in self._by_shard(indices):
            side.will_need(local, local + sizes[places])

    def __iter__(self) -> Iterator[list[int]]:
        for side in self._sides:
            for start, end in zip(side.offsets[:-1], side.offsets[1:], strict=True):
                yield side.tokens[start:end].tolist()

    def _by_shard(self, indices: Integers) -> Iterator[tuple[_Side, Integers | slice, Integers]]:
        """Yield each shard with some of the indices [B], their places in B, and in the shard."""
        if len(self._sides) == 1:
            yield self._sides[0], slice(None), indices
            return
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        small = numbers.astype(np.min_scalar_type(len(self._sides)))  # for a radix sort
        order = np.argsort(small, kind="stable")
        counts = np.bincount(numbers, minlength=len(self._sides))
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts):
            places = order[ends[number] - counts[number] : ends[number]]
            yield self._sides[number], places, indices[places] - self._starts[number]


class ParallelDataset:
    """One split of a binarized dataset; `vocab_sizes` are the sizes for source and target.

    Its index is read unless it is given.

    Opening it reads no token ids: call `verify` before the first use of a shard.

    Attributes:
        source: The source sentences.
        target: The target sentences.
        shards: Records of the shards, in the order of their indices.
        texts: The texts that training pairs come from, in order; empty for other splits.
    """

    def __init__(
        self,
        bin_dir: Path,
        split: str,
        *,
        vocab_sizes: tuple[int, int],
        index: DatasetIndex | None = None,
    ) -> None:
        index = index or DatasetIndex.load(bin_dir)
        if split not in index.shards:
            raise DataError(f"{bin_dir} has no {split} split: it has {', '.join(index.shards)}")
        self._bin_dir = bin_dir
        self.shards = index.shards[split]
        self.texts = index.texts if split == "train" else ()
        self.source, self.target = (
            TokenSequences(bin_dir, self.shards, language, side, vocab_size=vocab_sizes[side])
            for side, language in enumerate(index.languages)
        )

    def __len__(self) -> int:
        return len(self.source)

    def verify(self, numbers: Iterable[int] | None = None) -> None:
        """Compare shards, by their numbers from 0, or all shards with their records.

        This reads all of their files.
        """
        for number in range(len(self.shards)) if numbers is None else numbers:
            shard, sides = self.shards[number], (self.source.side(number), self.target.side(number))
            found = ShardIds.of_sides(self._bin_dir, shard.name, *sides)
            damaged = [file for file, each in shard.sha256.items() if found.sha256[file] != each]
            if damaged:
                reason = "its checksum differs from that in dataset.json"
                problem = f"{self._bin_dir / damaged[0]} is damaged ({reason})"
                raise _needs_binarizing(self._bin_dir, problem)
            if found != shard:
                reason = f"it has other counts of {shard.name}"
                problem = f"{self._bin_dir}/dataset.json is damaged ({reason})"
                raise _needs_binarizing(self._bin_dir, problem)


class ArrayWriter:
    """A one-dimensional .npy file that is appended to; `finish` writes its length."""

    def __init__(self, file: IO[bytes], dtype: npt.DTypeLike) -> None:
        self._file = file
        self._dtype = np.dtype(dtype)
        self.length = 0
        self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append [N] values."""
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.length += len(values)

    def finish(self) -> None:
        """Write the final length into the header."""
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(end)

    def _write_header(self) -> None:
        # NumPy pads the header, so that it has the same size for any length.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def id_dtype(vocab_size: int) -> npt.DTypeLike:
    """Return the smallest integer type for the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _map_array(path: Path) -> tuple[Ids, mmap.mmap]:
    """Map a one-dimensional array of unsigned integers into memory; return it and its file."""
    if not path.is_file():
        raise _needs_binarizing(path.parent, f"{path} does not exist")
    damage = _needs_binarizing(
        path.parent, f"{path} is not a .npy file of unsigned integers, or is cut off"
    )
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGED_HEADER as error:
        raise damage from error
    if mapped.ndim != 1 or mapped.dtype.kind != "u":
        raise damage
    # Indexing is faster without the type of memory-mapped arrays.
    return np.asarray(mapped), cast("mmap.mmap", mapped.base)


def _needs_binarizing(bin_dir: Path, problem: str) -> DataError:
    return DataError(f"{problem}: run {tfm_command('binarize', bin_dir.parent, '--force')}")
