"""Training pairs that are changed at random, anew in each epoch, and their token ids.

A pair is decoded, changed by the functions of `pair_changes`, each with its probability, and
encoded again, perhaps with BPE-dropout. Stored ids decode to their text, except for unknown tokens:
a pair with an unknown token stays as it is, and so does a pair that would become too long.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tfm.config import AugmentationConfig, settings_from, settings_to
from tfm.dataset.encoded_shards import TokenWriter
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex, Integers, ParallelDataset, ShardIds
from tfm.dataset.shards import TrainingText
from tfm.errors import DataError
from tfm.text.changes import CHANGES, pair_changes
from tfm.vocabulary.bpe_dropout import TokenIds
from tfm.vocabulary.subword import UNK, Vocabulary

NUMBERS = "numbers.npy"  # the file of a window with the numbers of its pairs
_BLOCK_PAIRS = 1_024  # to encode at once
_SAMPLE_PAIRS = 2_048  # to measure the growth on
_CHANGES = 2  # in a seed, to differ from the seeds that shuffle and draw pairs

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The changes of a run, and the dataset that it changes.

    Attributes:
        data_dir: Folder of the dataset.
        checksum: Digest of its training pairs.
        vocab_sizes: Numbers of source and target pieces.
        max_length: The most tokens of a side that changes.
        config: The changes.
        seed: Random seed.
    """

    data_dir: str
    checksum: str
    vocab_sizes: tuple[int, int]
    max_length: int
    config: AugmentationConfig
    seed: int


def configs_of(run: AugmentationConfig, texts: Sequence[TrainingText]) -> list[AugmentationConfig]:
    """Return the changes for the pairs of each text, or the run's if the texts are unknown."""
    tables = [text.augmentation for text in texts] or [{}]
    return [settings_from(AugmentationConfig, {**settings_to(run), **each}) for each in tables]


class AugmentedPairs(NamedTuple):
    """The pairs of a window after their changes, and their numbers [N] in the dataset."""

    changed: ParallelDataset
    numbers: Numbers  # ascending

    @classmethod
    def open(cls, folder: Path | None, augmentation: Augmentation | None) -> Self | None:
        """Map the files of a window into memory; return None if its pairs are as stored."""
        if folder is None or augmentation is None:
            return None
        pairs = ParallelDataset(folder, "train", vocab_sizes=augmentation.vocab_sizes)
        return cls(pairs, np.load(folder / NUMBERS))


class Augmenter:
    """Changes training pairs of a dataset, which must be the one that a run has opened."""

    def __init__(self, augmentation: Augmentation) -> None:
        data_dir = Path(augmentation.data_dir)
        self._index = index = DatasetIndex.load(data_dir / "bin")
        if index.checksum("train") != augmentation.checksum:
            raise DataError(f"{data_dir} has changed since the run was started: start it again")
        vocabulary, sizes = Vocabulary.load(data_dir), augmentation.vocab_sizes
        self._models = (vocabulary.source, vocabulary.target)
        dataset = ParallelDataset(data_dir / "bin", "train", vocab_sizes=sizes, index=index)
        self._sides = (dataset.source, dataset.target)
        self._seed, self._max_length = augmentation.seed, augmentation.max_length
        self._text_ends = np.cumsum([text.kept for text in dataset.texts])
        self._configs = configs_of(augmentation.config, dataset.texts)
        self._changes = pair_changes(index.languages, Manifest.load(data_dir).symbols)

    def write(self, folder: Path, *, epoch: int, window: int) -> None:
        """Write a binarized dataset of the pairs of a window, whose numbers are in its folder.

        It depends on the pairs, the run's seed, the epoch and the window.
        """
        random = np.random.default_rng([self._seed, epoch, window, _CHANGES])
        numbers = np.load(folder / NUMBERS)
        with ExitStack() as stack:
            writers = [
                TokenWriter(stack, folder / f"train.{language}", model)
                for language, model in zip(self._index.languages, self._models, strict=True)
            ]
            for sides in self.augmented(numbers, random):
                for writer, side in zip(writers, sides, strict=True):
                    writer.append(side)
            for writer in writers:
                writer.finish()
        ids = ShardIds.of_files(folder, "train", self._index.languages)
        replace(self._index, shards={"train": (ids,)}, texts=()).save(folder)

    def growth(self, sample: Integers) -> float:
        """Return how many target tokens there are after the changes for each one that is stored.

        It is measured on some pairs of a sample [N] of the dataset.
        """
        sample = np.sort(sample[:: -(-len(sample) // _SAMPLE_PAIRS)])
        blocks = self.augmented(sample, np.random.default_rng(self._seed))
        num_tokens = sum(int(lengths.sum()) for _, (_, lengths) in blocks)
        num_stored = int(self._sides[1].lengths(sample).sum())
        return (num_tokens + len(sample)) / (num_stored + len(sample))  # with EOS

    def augmented(
        self, numbers: Numbers | Integers, random: np.random.Generator
    ) -> Iterator[list[TokenIds]]:
        """Yield the token ids of both sides of pairs [N], whose numbers ascend, in blocks."""
        cuts = np.searchsorted(numbers, self._text_ends[:-1])
        for of_text, config in zip(np.split(numbers, cuts), self._configs, strict=True):
            for start in range(0, len(of_text), _BLOCK_PAIRS):
                block = of_text[start : start + _BLOCK_PAIRS].astype(np.int64)
                yield self._augment(block, config, random)

    def _augment(
        self, numbers: Integers, config: AugmentationConfig, random: np.random.Generator
    ) -> list[TokenIds]:
        """Return the token ids of both sides of some pairs [N]."""
        stored: list[list[npt.NDArray[Any]]] = []
        is_known = np.ones(len(numbers), dtype=bool)
        for sentences in self._sides:
            ids, lengths = sentences.concatenate(numbers)  # each with EOS
            ends = np.cumsum(lengths)
            is_known &= ~np.logical_or.reduceat(ids == UNK, ends - lengths)
            stored.append([each[:-1] for each in np.split(ids, ends[:-1])])
        shares = [getattr(config, f"{kind}_share") for kind in CHANGES]
        is_chosen = random.random((len(numbers), len(shares))) < shares
        rows = np.flatnonzero(is_known & (is_chosen.any(axis=1) | (config.bpe_dropout > 0)))
        if len(rows):
            self._replace(stored, rows, is_chosen[rows], config.bpe_dropout, random)
        return [(np.concatenate(side), np.array([*map(len, side)])) for side in stored]

    def _replace(
        self,
        stored: Sequence[list[npt.NDArray[Any]]],
        rows: Integers,
        is_chosen: npt.NDArray[np.bool_],
        dropout: float,
        random: np.random.Generator,
    ) -> None:
        """Replace the stored token ids of both sides in some rows [R] by those of changed pairs.

        `is_chosen` [R, number of changes] selects the changes of each pair.
        """
        sources, targets = (
            model.decode(side[row].tolist() for row in rows)
            for model, side in zip(self._models, stored, strict=True)
        )
        for place, index in np.argwhere(is_chosen):
            pair = sources[place], targets[place]
            sources[place], targets[place] = self._changes[index](*pair, random)
        drawn = []
        for model, lines in zip(self._models, (sources, targets), strict=True):
            ids, lengths = model.encode_block([*map(str.encode, lines)], dropout, random)
            drawn.append(np.split(ids, np.cumsum(lengths)[:-1]))
        for row, source, target in zip(rows, *drawn, strict=True):
            if max(len(source), len(target)) <= self._max_length:
                stored[0][row], stored[1][row] = source, target
