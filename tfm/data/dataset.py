"""Binarized parallel text: token ids on disk, mapped into memory when read.

A folder holds, for each split and language, `SPLIT.LANGUAGE.tokens.npy` (all ids one after another,
in the smallest integer type that fits the vocabulary), `SPLIT.LANGUAGE.offsets.npy` (where each
sentence starts, and the end) and, written last, `dataset.json` with the format version, the counts,
the fingerprint of the subword model and the checksum of each file, which is compared whenever a
split is opened.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tfm.data.manifest import LANGUAGE
from tfm.data.subword import PAD
from tfm.errors import DataError
from tfm.storage.files import read_json, sha256_of, write_json

FORMAT = 2

_KINDS = ("tokens", "offsets")
_MAX_HEADER_BYTES = 256
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<>|][iu][1248])', 'fortran_order': False, "
    rb"'shape': \((?P<length>[0-9]{1,15}),\), \} *\n",
    re.DOTALL,
)

Ids = npt.NDArray[np.integer[Any]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DatasetIndex:
    """What `dataset.json` says.

    Attributes:
        source: Source language.
        target: Target language.
        fingerprint: Of the vocabulary that the ids belong to.
        num_pairs: Sentence pairs of each split.
        sha256: Checksum of each .npy file, by its name; `save` computes them.
    """

    source: str
    target: str
    fingerprint: str
    num_pairs: Mapping[str, int]
    sha256: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, bin_dir: Path) -> "DatasetIndex":
        """Read the index of a binarized dataset.

        Raises:
            DataError: There is none, it has another format or is damaged.
        """
        path = bin_dir / "dataset.json"
        if not path.is_file():
            raise DataError(f'{bin_dir} holds no binarized dataset: run "tfm binarize"')
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise DataError(f'{path} is not of format {FORMAT}: run "tfm binarize --force"')
        if content.keys() != {item.name for item in fields(cls)} or not _is_sound(content):
            raise DataError(f'{path} is damaged: run "tfm binarize --force"')
        return cls(**content)

    def files(self, split: str) -> list[str]:
        """Names of the .npy files of a split."""
        return _file_names(split, (self.source, self.target))

    def checksum(self, split: str) -> str:
        """Hexadecimal digest of the pairs of a split, in their order; it tells data apart."""
        digests = "".join(self.sha256[name] for name in self.files(split))
        return hashlib.sha256(digests.encode()).hexdigest()

    def save(self, bin_dir: Path) -> None:
        """Write the index, with the checksums of the files as they are; it makes them a dataset."""
        names = [name for split in self.num_pairs for name in self.files(split)]
        sha256 = {name: sha256_of(bin_dir / name) for name in names}
        write_json(bin_dir / "dataset.json", {"format": FORMAT, **self.__dict__, "sha256": sha256})


class TokenSequences:
    """The sentences of one language of one split, as token ids.

    Args:
        bin_dir: Folder of the binarized dataset.
        name: "SPLIT.LANGUAGE".
        vocab_size: Number of pieces; ids are below it.

    Raises:
        DataError: The files are missing, damaged or do not fit together.
    """

    def __init__(self, bin_dir: Path, name: str, *, vocab_size: int) -> None:
        self._tokens = _mapped(bin_dir / f"{name}.tokens.npy")
        self._offsets = _mapped(bin_dir / f"{name}.offsets.npy")
        if not _are_offsets(self._offsets, end=len(self._tokens)):
            raise DataError(
                f'{bin_dir}/{name}: the offsets do not fit the tokens; run "tfm binarize --force"'
            )
        if len(self._tokens) and not 0 <= self._tokens.min() <= self._tokens.max() < vocab_size:
            raise DataError(
                f"{bin_dir}/{name}: there are ids beyond the vocabulary of {vocab_size:,}; "
                'run "tfm binarize --force"'
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lengths(self) -> Rows:
        """[N] Number of tokens of each sentence."""
        return np.diff(self._offsets).astype(np.int64)

    def joined(self, rows: Rows, *, gap: int) -> tuple[Rows, Rows]:
        """Sentences one after another on one axis.

        Args:
            rows: [B] Which sentences.
            gap: Free places after each.

        Returns:
            [N] token ids, with padding in the free places, and [B] lengths without them.
        """
        starts = self._offsets[rows].astype(np.int64)
        lengths = self._offsets[rows + 1].astype(np.int64) - starts
        ends = np.cumsum(lengths + gap)
        ids = np.full(ends[-1] if len(rows) else 0, PAD, dtype=np.int64)
        # From the place of a token to where it is in the file.
        shifts = starts - (ends - lengths - gap)
        is_token = np.ones(len(ids), dtype=bool)
        for after in range(1, gap + 1):
            is_token[ends - after] = False
        places = np.flatnonzero(is_token)
        ids[places] = self._tokens[places + np.repeat(shifts, lengths)]
        return ids, lengths

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in zip(self._offsets[:-1], self._offsets[1:], strict=True):
            yield self._tokens[start:end].tolist()


class ParallelDataset:
    """One split of a binarized dataset.

    Args:
        bin_dir: Folder of the binarized dataset.
        split: "train", "valid" or "test".
        vocab_sizes: Number of source and target pieces.

    Raises:
        DataError: The split is not there, or damaged.
    """

    def __init__(self, bin_dir: Path, split: str, *, vocab_sizes: tuple[int, int]) -> None:
        index = DatasetIndex.load(bin_dir)
        if split not in index.num_pairs:
            raise DataError(f"{bin_dir} has no {split} split: it has {', '.join(index.num_pairs)}")
        for name in index.files(split):
            _check_file(bin_dir / name, index)
        self.source, self.target = (
            TokenSequences(bin_dir, f"{split}.{language}", vocab_size=size)
            for language, size in zip((index.source, index.target), vocab_sizes, strict=True)
        )
        if not len(self.source) == len(self.target) == index.num_pairs[split]:
            raise DataError(
                f"{bin_dir}: {split} has {len(self.source):,} source and {len(self.target):,} "
                f"target sentences, but the index says {index.num_pairs[split]:,}; "
                'run "tfm binarize --force"'
            )

    def __len__(self) -> int:
        return len(self.source)


class ArrayWriter:
    """A one-dimensional .npy file that grows; its length is written at the end."""

    def __init__(self, file: IO[bytes], dtype: npt.DTypeLike) -> None:
        self._file = file
        self._dtype = np.dtype(dtype)
        self.length = 0
        self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.length += len(values)

    def finish(self) -> None:
        """Write the final length into the header."""
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(end)

    def _write_header(self) -> None:
        # NumPy leaves room in the header for a length of any size.
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def id_dtype(vocab_size: int) -> npt.DTypeLike:
    """The smallest integer type for the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _file_names(split: str, languages: Iterable[str]) -> list[str]:
    return [f"{split}.{language}.{kind}.npy" for language in languages for kind in _KINDS]


def _is_sound(content: Mapping[str, Any]) -> bool:
    """Whether everything in an index is of the kind that it should be."""
    num_pairs, sha256 = content["num_pairs"], content["sha256"]
    languages = [content["source"], content["target"]]
    return (
        all(isinstance(name, str) and LANGUAGE.fullmatch(name) for name in languages)
        and isinstance(content["fingerprint"], str)
        and isinstance(num_pairs, dict)
        and all(type(count) is int and count >= 0 for count in num_pairs.values())
        and isinstance(sha256, dict)
        and all(isinstance(digest, str) for digest in sha256.values())
        and sha256.keys() == {name for split in num_pairs for name in _file_names(split, languages)}
    )


def _check_file(path: Path, index: DatasetIndex) -> None:
    """Compare a file with its checksum.

    Raises:
        DataError: It is missing, or not as it was written.
    """
    if not path.is_file():
        raise DataError(f'{path} does not exist: run "tfm binarize --force"')
    if sha256_of(path) != index.sha256[path.name]:
        raise DataError(
            f'{path} is damaged, it does not have the checksum in dataset.json: run "tfm binarize '
            '--force"'
        )


def _mapped(path: Path) -> Ids:
    """A list of integers, left on disk until it is needed.

    NumPy's own reading has the header parsed as Python source; this knows just what we write.
    """
    if not path.is_file():
        raise DataError(f'{path} does not exist: run "tfm binarize --force"')
    with path.open("rb") as file:
        header = _HEADER.match(file.read(_MAX_HEADER_BYTES))
    if header is None:
        raise DataError(f'{path} is no list of integers: run "tfm binarize --force"')
    dtype, length = np.dtype(header["dtype"].decode()), int(header["length"])
    if path.stat().st_size != header.end() + length * dtype.itemsize:
        raise DataError(f'{path} is cut short or damaged: run "tfm binarize --force"')
    return np.memmap(path, dtype=dtype, mode="r", offset=header.end(), shape=(length,))


def _are_offsets(offsets: Ids, *, end: int) -> bool:
    """Whether they start at 0, never fall, and stop at the end."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end:
        return False
    return bool((offsets[1:] >= offsets[:-1]).all())
