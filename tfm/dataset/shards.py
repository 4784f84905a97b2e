"""A dataset is a list of shards: consecutive pairs of a split, which are written once."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Self

from tfm.config import Values
from tfm.config.values import shown
from tfm.disk.files import have_sizes, read_record, write_record
from tfm.errors import UsageError
from tfm.text.corpus.texts import Text
from tfm.text.counts import PairCounts
from tfm.text.lines import BytesPair

FORMAT = 1  # of the records of shards

ShardName = Annotated[str, re.compile(r"[a-z]+(\.[1-9][0-9]{0,5})?")]


@dataclass(kw_only=True)
class TrainingText(PairCounts):
    """One of the texts that pairs come from, with its counts in a shard or in all shards.

    Attributes:
        name: Its number in the recipe, and the name of its source file.
        weight: Its share of an epoch, relative to the other texts; None: each pair comes once.
        tag: The tag before each of its source sentences.
        augmentation: Settings that differ from [augmentation] of a run for its pairs.
    """

    name: str
    weight: float | None = None
    tag: str | None = None
    augmentation: Values = field(default_factory=dict)

    @classmethod
    def of(cls, text: Text, name: str, length_ratio: float | None = None) -> "TrainingText":
        """Return a text of a recipe without pairs."""
        options = {key: text.options()[key] for key in ("weight", "tag", "augmentation")}
        return cls(name=name, length_ratio=length_ratio, **options)

    def without_counts(self) -> "TrainingText":
        """Return the text without pairs."""
        return replace(self, **vars(PairCounts(length_ratio=self.length_ratio)))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Consecutive pairs of a split.

    Attributes:
        name: The first shard of a split has its name, and the next ones a number, as in "train.2".
        texts: The texts that its pairs come from, in order, with their counts in it; none if
            `tfm prepare` did not write it.
        appended: Whether it came after the subword model was learned.
    """

    name: ShardName
    texts: tuple[TrainingText, ...] = ()
    appended: bool = False


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """The record of the files of a shard in a folder, beside them.

    Attributes:
        inputs: JSON values of all that determines them.
        sizes: {file name: size in bytes}.
        shard: The shard.
    """

    inputs: Values
    sizes: Mapping[str, int]
    shard: Shard

    @classmethod
    def find(cls, folder: Path, name: str, inputs: Values, *, advice: str) -> Self | None:
        """Read the record of a shard; None unless its files are whole and of these inputs."""
        path = folder / f"{name}.json"
        if not path.is_file():
            return None
        record = read_record(path, cls, format_=FORMAT, advice=advice)
        is_current = record.inputs == inputs and have_sizes(folder, record.sizes)
        return record if is_current else None

    def save(self, folder: Path) -> None:
        """Write the record."""
        write_record(folder / f"{self.shard.name}.json", self, format_=FORMAT)


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard of a split, from number 1 on."""
    return split if number == 1 else f"{split}.{number}"


def sum_of_texts(shards: Iterable[Shard]) -> list[TrainingText]:
    """Return the texts of shards in order, each once, with the sums of their counts."""
    texts: dict[str, TrainingText] = {}
    for text in chain.from_iterable(shard.texts for shard in shards):
        texts.setdefault(text.name, text.without_counts()).add(text)
    return list(texts.values())


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
