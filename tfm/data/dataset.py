"""Binarized parallel text: token ids on disk, mapped into memory when read.

A folder holds, for each split and language, `SPLIT.LANGUAGE.tokens.npy` (all ids one after another,
in the smallest integer type that fits the vocabulary), `SPLIT.LANGUAGE.offsets.npy` (where each
sentence starts, and the end) and, written last, `dataset.json` with the format version, the counts
and the fingerprint of the subword model.
"""

import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tfm.data.subword import PAD
from tfm.errors import DataError
from tfm.runtime.files import read_json, write_json

FORMAT = 1

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
    """

    source: str
    target: str
    fingerprint: str
    num_pairs: Mapping[str, int]

    @classmethod
    def load(cls, bin_dir: Path) -> "DatasetIndex":
        """Read the index of a binarized dataset.

        Raises:
            DataError: There is none, or it has another format.
        """
        path = bin_dir / "dataset.json"
        if not path.is_file():
            raise DataError(f'{bin_dir} holds no binarized dataset: run "tfm binarize"')
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise DataError(f'{path} is not of format {FORMAT}: run "tfm binarize --force"')
        names = {item.name for item in fields(cls)}
        if content.keys() != names or not isinstance(content["num_pairs"], dict):
            raise DataError(f'{path} is damaged: run "tfm binarize --force"')
        return cls(**content)

    def save(self, bin_dir: Path) -> None:
        """Write the index; with it the dataset is complete."""
        write_json(bin_dir / "dataset.json", {"format": FORMAT, **self.__dict__})


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

    def padded(self, rows: Rows) -> tuple[Rows, Rows]:
        """Sentences as one array.

        Args:
            rows: [B] Which sentences.

        Returns:
            [B, T] token ids, padded at the end, and [B] lengths; T is the greatest length.
        """
        starts = self._offsets[rows].astype(np.int64)
        lengths = self._offsets[rows + 1].astype(np.int64) - starts
        columns = np.arange(lengths.max(initial=0))
        valid = columns < lengths[:, None]
        ids = np.full(valid.shape, PAD, dtype=np.int64)
        ids[valid] = self._tokens[(starts[:, None] + columns)[valid]]
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


def _mapped(path: Path) -> Ids:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        is_whole = array.offset + array.nbytes == path.stat().st_size
    except FileNotFoundError:
        raise DataError(f'{path} does not exist: run "tfm binarize"') from None
    # NumPy reads the header as Python source.
    except (ValueError, EOFError, OSError, SyntaxError, tokenize.TokenError) as error:
        raise DataError(f'{path} is damaged: run "tfm binarize --force"') from error
    if not is_whole or array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f'{path} is no list of integers: run "tfm binarize --force"')
    ids: Ids = array
    return ids


def _are_offsets(offsets: Ids, *, end: int) -> bool:
    """Whether they start at 0, never fall, and stop at the end."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end:
        return False
    return bool((offsets[1:] >= offsets[:-1]).all())
