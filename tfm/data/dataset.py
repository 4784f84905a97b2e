"""Binarized parallel text: token ids in memory-mapped files.

For each split and language, a folder holds `SPLIT.LANGUAGE.tokens.npy` (the concatenated ids, in
the smallest integer type that fits the vocabulary) and `SPLIT.LANGUAGE.offsets.npy` (the start of
each sentence, and the end). With BPE-dropout, the K variants follow in the training files: each
has all pairs in the same order, segmented into other pieces. `dataset.json` is written last, with
the format version, counts, fingerprint of the vocabulary and file checksums, which are verified
when a split is opened.
"""

import hashlib
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tfm.config.schema import from_table
from tfm.data.manifest import Language, TrainingText
from tfm.data.subword import EOS
from tfm.errors import DataError, tfm_command
from tfm.storage.files import read_json, sha256_of, write_json

FORMAT = 2

_KINDS = ("tokens", "offsets")
# NumPy evaluates the header of a file as a Python literal.
_DAMAGED_HEADER = (OverflowError, SyntaxError, TypeError, ValueError, tokenize.TokenError)

Ids = npt.NDArray[np.integer[Any]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DatasetIndex:
    """The content of `dataset.json`.

    Attributes:
        source: Source language.
        target: Target language.
        fingerprint: Fingerprint of the vocabulary.
        num_pairs: {split: number of sentence pairs}.
        sha256: {file name: checksum} of the .npy files; `save` computes them.
        texts: The texts that the training pairs come from, in order; empty if unknown.
        num_variants: Number of segmentations of the training pairs with BPE-dropout, which follow
            the one without.
    """

    source: Language
    target: Language
    fingerprint: str
    num_pairs: Mapping[str, int]
    sha256: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[TrainingText, ...] = ()
    num_variants: int = 0

    @classmethod
    def load(cls, bin_dir: Path) -> "DatasetIndex":
        """Read the index of a binarized dataset.

        Raises:
            DataError: The index is missing, damaged or of another format.
        """
        path = bin_dir / "dataset.json"
        if not path.is_file():
            raise DataError(
                f"{bin_dir} holds no binarized dataset: run "
                + tfm_command("binarize", bin_dir.parent)
            )
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise _needs_binarizing(bin_dir, f"{path} is not of format {FORMAT}")
        try:
            index = from_table(cls, content)
        except ValueError as error:
            raise _needs_binarizing(bin_dir, f"{path} is damaged ({error})") from error
        if index.sha256.keys() != {
            name for split in index.num_pairs for name in index.files(split)
        }:
            raise _needs_binarizing(bin_dir, f"{path} is damaged (sha256 is of other files)")
        if index.texts and sum(each.kept for each in index.texts) != index.num_pairs.get("train"):
            raise _needs_binarizing(bin_dir, f"{path} is damaged (texts are of other pairs)")
        return index

    def files(self, split: str) -> list[str]:
        """Return the names of the .npy files of a split."""
        languages = (self.source, self.target)
        return [f"{split}.{language}.{kind}.npy" for language in languages for kind in _KINDS]

    def checksum(self, split: str) -> str:
        """Return a hexadecimal digest of the pairs of a split, their order and their weights."""
        digests = "".join(self.sha256[name] for name in self.files(split))
        if split == "train" and any(text.weight for text in self.texts):
            digests += "".join(f" {text.kept}:{text.weight}" for text in self.texts)
        return hashlib.sha256(digests.encode()).hexdigest()

    def save(self, bin_dir: Path) -> None:
        """Compute the checksums of the .npy files and write the index."""
        names = [name for split in self.num_pairs for name in self.files(split)]
        sha256 = {name: sha256_of(bin_dir / name) for name in names}
        write_json(bin_dir / "dataset.json", {"format": FORMAT, **asdict(self), "sha256": sha256})


class TokenSequences:
    """The sentences of one language of a split, as token ids; `name` is "SPLIT.LANGUAGE".

    Raises:
        DataError: The files are missing, damaged or inconsistent, or ids exceed `vocab_size`.
    """

    def __init__(self, bin_dir: Path, name: str, *, vocab_size: int) -> None:
        self._tokens = _map_array(bin_dir / f"{name}.tokens.npy")
        self._offsets = offsets = _map_array(bin_dir / f"{name}.offsets.npy")
        has_ends = len(offsets) and offsets[0] == 0 and offsets[-1] == len(self._tokens)
        if not has_ends or (offsets[1:] < offsets[:-1]).any():
            raise _needs_binarizing(
                bin_dir, f"the offsets of {bin_dir}/{name} do not fit its tokens"
            )
        if len(self._tokens) and not 0 <= self._tokens.min() <= self._tokens.max() < vocab_size:
            raise _needs_binarizing(
                bin_dir, f"{bin_dir}/{name} has ids outside the vocabulary of {vocab_size:,} pieces"
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lengths(self, rows: Rows | None = None) -> Rows:
        """Return the numbers of tokens of sentences [B], or of all."""
        if rows is None:
            return np.diff(self._offsets).astype(np.int64)
        return (self._offsets[rows + 1] - self._offsets[rows]).astype(np.int64)

    def concatenate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Concatenate the sentences [B], each followed by EOS.

        Returns:
            [N] token ids, and [B] lengths of the sentences with EOS.
        """
        starts = self._offsets[rows].astype(np.int64)
        lengths = self._offsets[rows + 1].astype(np.int64) - starts + 1
        ends = np.cumsum(lengths)
        ids = np.full(lengths.sum(), EOS, dtype=np.int64)
        shifts = starts - (ends - lengths)  # from a position in `ids` to that in the file
        is_token = np.ones(len(ids), dtype=bool)
        is_token[ends - 1] = False
        positions = np.flatnonzero(is_token)
        ids[positions] = self._tokens[positions + np.repeat(shifts, lengths - 1)]
        return ids, lengths

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in zip(self._offsets[:-1], self._offsets[1:], strict=True):
            yield self._tokens[start:end].tolist()


class ParallelDataset:
    """One split of a binarized dataset; `vocab_sizes` are those of source and target.

    Attributes:
        source: The source sentences.
        target: The target sentences.
        texts: The texts that training pairs come from, in order; empty for other splits.
        num_variants: Number of segmentations with BPE-dropout. Row r + v · N is pair r of N in
            variant v from 1 on; rows below N have no dropout.

    Raises:
        DataError: The split is missing or damaged.
    """

    def __init__(self, bin_dir: Path, split: str, *, vocab_sizes: tuple[int, int]) -> None:
        index = DatasetIndex.load(bin_dir)
        if split not in index.num_pairs:
            raise DataError(f"{bin_dir} has no {split} split: it has {', '.join(index.num_pairs)}")
        for name in index.files(split):
            path = bin_dir / name
            if not path.is_file():
                raise _needs_binarizing(path.parent, f"{path} does not exist")
            if sha256_of(path) != index.sha256[name]:
                raise _needs_binarizing(
                    path.parent,
                    f"{path} is damaged (its checksum differs from that in dataset.json)",
                )
        self.texts = index.texts if split == "train" else ()
        self.source, self.target = (
            TokenSequences(bin_dir, f"{split}.{language}", vocab_size=size)
            for language, size in zip((index.source, index.target), vocab_sizes, strict=True)
        )
        self.num_variants = index.num_variants if split == "train" else 0
        self._num_pairs = index.num_pairs[split]
        num_rows = (1 + self.num_variants) * self._num_pairs
        if not len(self.source) == len(self.target) == num_rows:
            raise _needs_binarizing(
                bin_dir,
                f"{split} in {bin_dir} has {len(self.source):,} source and {len(self.target):,} "
                f"target sentences, but dataset.json says {num_rows:,}",
            )

    def __len__(self) -> int:
        return self._num_pairs


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


def _map_array(path: Path) -> Ids:
    """Map a one-dimensional array of integers into memory."""
    damage = _needs_binarizing(path.parent, f"{path} is not a .npy file of integers, or is cut off")
    try:
        array: Ids = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGED_HEADER as error:
        raise damage from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise damage
    return array


def _needs_binarizing(bin_dir: Path, problem: str) -> DataError:
    return DataError(f"{problem}: run {tfm_command('binarize', bin_dir.parent, '--force')}")
