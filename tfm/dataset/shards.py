"""A dataset is a list of shards: consecutive pairs of a split, which are written once."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tfm.config.values import shown
from tfm.errors import UsageError
from tfm.text.lines import BytesPair


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """One of the texts that pairs come from, as in a shard, or in all shards of a split.

    Attributes:
        name: Its number in the recipe, and the name of its source file.
        kept: Number of its pairs; the pairs of the first text come first.
        read: Number of pairs in its files.
        normalized: Number of pairs whose text was changed.
        windows_1252: Number of them in which characters were decoded.
        dropped: {rule: number of pairs that it dropped}.
        in_held_out: Number of pairs that are also in the validation or test text.
        length_ratio: The usual ratio of the lengths of its sides, if it was measured.
        weight: Its share of an epoch, relative to the other texts; None: each pair comes once.
        tag: The tag before each of its source sentences.
    """

    name: str
    kept: int
    read: int
    normalized: int = 0
    windows_1252: int = 0
    dropped: Mapping[str, int]
    in_held_out: int = 0
    length_ratio: float | None = None
    weight: float | None = None
    tag: str | None = None

    def plus(self, other: "TrainingText") -> "TrainingText":
        """Return the text with the counts of other pairs of it."""
        added = ("kept", "read", "normalized", "windows_1252", "in_held_out")
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in added}
        dropped = Counter(self.dropped)
        dropped.update(other.dropped)
        return replace(self, dropped={**dropped}, **sums)


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What is recorded of the text of a shard: its name, and its texts with their counts in it.

    Shards that are `appended` came after the subword model was learned.
    """

    name: str
    appended: bool
    texts: tuple[TrainingText, ...]

    @property
    def pairs(self) -> int:
        """The number of its pairs."""
        return sum(text.kept for text in self.texts)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Consecutive pairs of a split.

    Attributes:
        name: The first shard of a split has its name, and the next ones a number, as in "train.2".
        text: The text files of source and target.
        start: Number of pairs of the split before it.
        pairs: Number of its pairs; None if `tfm prepare` did not write the text.
        text_ends: Numbers of pairs of the split up to the end of each training text that begins
            before the end of the shard, where the last one is cut off.
        record: What is recorded of it; None if `tfm prepare` did not write the text.
    """

    name: str
    text: tuple[Path, Path]
    start: int
    pairs: int | None
    text_ends: tuple[int, ...]
    record: ShardRecord | None = None

    @property
    def is_appended(self) -> bool:
        """Whether it came after the subword model was learned."""
        return self.record is not None and self.record.appended


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard of a split, from number 1 on."""
    return split if number == 1 else f"{split}.{number}"


def by_text(
    pairs: Iterator[BytesPair], texts: Sequence[TrainingText]
) -> Iterator[tuple[TrainingText, Iterator[BytesPair]]]:
    """Yield each text of a shard and its pairs, without its tag, to be read to their end."""
    for text in texts:
        tag = f"{text.tag} ".encode() if text.tag else b""
        of_text = islice(pairs, text.kept)
        yield text, ((source.removeprefix(tag), target) for source, target in of_text)


@dataclass(frozen=True)
class Share:
    """Share I of N of the shards, for one of several machines; I counts from 1."""

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

    def has(self, number: int) -> bool:
        """Return whether the share has a shard, by its number from 0 on."""
        return number % self.count == self.number - 1

    def check(self, num_shards: int) -> None:
        """Raise UsageError if the training text has too few shards for this share."""
        if num_shards < self.number:
            raise UsageError(
                f"--share {self} has no shard, because the training text has only {num_shards}: "
                "choose fewer shares, or smaller shards with --shard-pairs"
            )
