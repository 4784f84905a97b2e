"""Text in parts of a bounded number of pairs, and in shares for several machines."""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, TypeVar

from tfm.config import Values
from tfm.config.values import shown
from tfm.dataset.manifest import Manifest, part_name
from tfm.disk.files import atomic_write, have_sizes, read_record, write_record
from tfm.disk.lock import lock_folder
from tfm.errors import DataError, UsageError
from tfm.text.cleaning import PairCounts
from tfm.text.lines import BytesPair, read_pairs

SHARE_RECORD = "text.json"
_FORMAT = 1  # of the record of a share
_MAX_WAIT_SECONDS = 10  # for other shares that start
_STRIPE_PAIRS = 100_000  # consecutive pairs that are of the same share; part of the format

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Share I of N of the text, for one of several machines; I counts from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read a share such as 3/8."""
        if match := re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text):
            share = cls(int(match[1]), int(match[2]))
            if 1 <= share.number <= share.count:
                return share
        raise UsageError(f"--share is {shown(text)}, but must be I/N, such as 3/8 for share 3 of 8")

    def __str__(self) -> str:
        """Return the share as it is parsed."""
        return f"{self.number}/{self.count}"

    def folder(self, data_dir: Path) -> Path:
        """Return the folder that this share of a dataset locks and writes to."""
        return data_dir / "shares" / f"{self.number}-of-{self.count}"

    def stripes(self, pairs: Iterable[T]) -> Iterator[Iterator[T]]:
        """Yield the stripes of a text that are of this share; each must be read to its end."""
        pairs = iter(pairs)
        _skip(pairs, (self.number - 1) * _STRIPE_PAIRS)
        for first in pairs:
            yield chain([first], islice(pairs, _STRIPE_PAIRS - 1))
            _skip(pairs, (self.count - 1) * _STRIPE_PAIRS)


def _skip(items: Iterator[T], number: int) -> None:
    deque(islice(items, number), maxlen=0)


@contextmanager
def lock_dataset(data_dir: Path) -> Iterator[None]:
    """Hold the locks of a dataset and of all its shares during the block."""
    with ExitStack() as stack:
        for folder in (data_dir, *sorted(data_dir.glob("shares/*/"))):
            stack.enter_context(lock_folder(folder))
        yield


@contextmanager
def lock_share(data_dir: Path, share: Share) -> Iterator[None]:
    """Hold the lock of a share of a dataset during the block."""
    with ExitStack() as stack:
        # Held only until the share is locked, so that other shares start at the same time.
        with lock_folder(data_dir, max_wait_seconds=_MAX_WAIT_SECONDS):
            stack.enter_context(lock_folder(share.folder(data_dir)))
        yield


@dataclass(frozen=True, kw_only=True)
class ShareOfText:
    """The counts of a training text in one share, and its clean pairs in each stripe."""

    counts: Values
    examples: Mapping[str, tuple[tuple[str, str], ...]]
    stripes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ShareRecord:
    """The record of a share of clean training text.

    Attributes:
        share: The share.
        inputs: JSON values of all that determines the text.
        sizes: {file name: size in bytes} of its files.
        texts: The training texts in order.
    """

    share: Share
    inputs: Values
    sizes: Mapping[str, int]
    texts: tuple[ShareOfText, ...]

    @classmethod
    def find(cls, folder: Path, inputs: Values) -> "ShareRecord | None":
        """Read the record in the folder of a share; None unless it is of its files, for inputs."""
        path = folder / SHARE_RECORD
        if not path.is_file():
            return None
        record = read_record(path, cls, format_=_FORMAT, advice=f"remove {folder}")
        is_current = record.inputs == inputs and have_sizes(folder, record.sizes)
        return record if is_current else None

    def save(self, folder: Path) -> None:
        """Write the record into the folder of the share."""
        write_record(folder / SHARE_RECORD, self, format_=_FORMAT)


class JoinedShares:
    """The clean training text of all shares, in its order; texts must be read one after the other.

    Duplicates within a share are gone; duplicates across shares are not.
    """

    def __init__(self, data_dir: Path, records: Sequence[ShareRecord]) -> None:
        self._records = records
        self._readers = [
            read_pairs(*(each.share.folder(data_dir) / name for name in each.sizes), strict=True)
            for each in records
        ]

    @classmethod
    def find(cls, data_dir: Path, inputs: Values) -> "JoinedShares | None":
        """Return the shares of text that depends on some inputs; None if there are none."""
        found: dict[int, dict[int, ShareRecord]] = {}
        for folder in data_dir.glob("shares/*/"):
            if record := ShareRecord.find(folder, inputs):
                found.setdefault(record.share.count, {})[record.share.number] = record
        if not found:
            return None
        count, records = min(found.items(), key=lambda item: item[0] - len(item[1]))
        if missing := [number for number in range(1, count + 1) if number not in records]:
            raise DataError(
                f"share {missing[0]}/{count} of the training text is missing: prepare it with "
                f"--share {missing[0]}/{count}, or prepare all text here with --force"
            )
        return cls(data_dir, [records[number] for number in range(1, count + 1)])

    def add_counts(self, number: int, counts: PairCounts) -> None:
        """Add the counts of a text, from 0 on, without duplicates among shares."""
        for record in self._records:
            text = record.texts[number]
            examples = {rule: list(pairs) for rule, pairs in text.examples.items()}
            counts.add(of_share := PairCounts(**text.counts, examples=examples))
            counts.length_ratio = of_share.length_ratio  # the same in all shares

    def pairs(self, number: int) -> Iterator[BytesPair]:
        """Return the pairs of a text, from 0 on."""
        for sizes in zip_longest(*(each.texts[number].stripes for each in self._records)):
            for reader, size in zip(self._readers, sizes, strict=True):
                yield from islice(reader, size or 0)


def remove_shares(data_dir: Path) -> None:
    """Remove the text of all shares of a dataset, complete or not, but not their locks."""
    for path in data_dir.glob("shares/*/*"):
        if not path.name.startswith(".lock"):
            path.unlink()


class PartWriter:
    """Writes pairs to the parts of a split, one after the other.

    All parts replace older files when `stack` is closed without an error. A part has at most
    `max_pairs` pairs; if they are None, there is only one part. The parts count from `first` on.
    """

    def __init__(
        self,
        stack: ExitStack,
        manifest: Manifest,
        split: str,
        *,
        max_pairs: int | None,
        first: int = 1,
    ) -> None:
        self._stack, self._manifest, self._split = stack, manifest, split
        self._max_pairs, self._first = max_pairs, first
        self.sizes: list[int] = []  # numbers of pairs in the parts so far
        self.files: dict[Path, IO[bytes]] = {}
        self._start_part()

    def write(self, pairs: list[BytesPair]) -> None:
        """Write pairs of lines."""
        while pairs:
            if self.sizes[-1] == self._max_pairs:
                self._start_part()
            room = len(pairs) if self._max_pairs is None else self._max_pairs - self.sizes[-1]
            for number, file in enumerate(self._current):
                file.writelines(pair[number] + b"\n" for pair in pairs[:room])
            self.sizes[-1] += len(pairs[:room])
            pairs = pairs[room:]

    def open(self, suffix: str) -> IO[bytes]:
        """Open another file of the part."""
        name = part_name(self._split, self._first + len(self.sizes) - 1)
        path = self._manifest.text_path(name, suffix)
        self.files[path] = self._stack.enter_context(atomic_write(path))
        return self.files[path]

    def flush(self) -> None:
        """Write all files to disk, under their temporary names."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def _start_part(self) -> None:
        self.sizes.append(0)
        self._current = [self.open(language) for language in self._manifest.languages]
