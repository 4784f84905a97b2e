"""A dataset is a list of shards: consecutive pairs of a split, which are written once."""

from dataclasses import dataclass
from pathlib import Path


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
    """

    name: str
    text: tuple[Path, Path]
    start: int
    pairs: int | None
    text_ends: tuple[int, ...]
