"""The plan of an epoch: in which order it takes the pairs, and where its batches start.

Up to `WINDOW_PAIRS` pairs are one window. It is shuffled, sorted by length and cut into buckets;
shuffled buckets are joined to batches. So any pair may meet any other of similar length.

More pairs are divided into several windows of about that size, each planned in this way, one after
the other while training runs: memory and the time to the first step do not grow with the dataset.
Runs of `RUN_PAIRS` consecutive pairs are dealt to the windows at random, anew in each epoch.

Random are the window of a run, the batch of a pair among the batches of its length in the window,
and the order of batches in a window. Not random: the pairs of a run share a window in an epoch, and
a batch has pairs of one window. The plan depends on data, settings, seed and epoch alone, not on
the number of processes or machines, and a window can be planned without the windows before it.

Pairs that are augmented are in windows of `AUGMENTED_PAIRS`: each is augmented while training uses
the one before, and planned by the lengths that its pairs have then.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfm.config import BatchingConfig
from tfm.dataset.augmentation import Augmentation, AugmentedPairs, Augmenter
from tfm.dataset.augmenting_process import AugmentingProcess
from tfm.dataset.parallel import Integers, ParallelDataset
from tfm.dataset.shards import TrainingText
from tfm.errors import DataError
from tfm.machine.group import Group

WINDOW_PAIRS = 10_000_000
AUGMENTED_PAIRS = 1 << 18
RUN_PAIRS = 4_096

_MAX_PAIRS = 1 << 32
_BLOCK_PAIRS = 1 << 20  # to read lengths of at once
_POLL_SECONDS = 0.01
_PAIRS, _STARTS = "pairs.npy", "starts.npy"  # the files of a window
_DRAWS = 1  # in a seed, to differ from the seeds that shuffle epochs

Pairs = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.unsignedinteger[Any]]


class Runs(NamedTuple):
    """Runs of consecutive pairs."""

    starts: Integers  # [R] the first pair of each
    lengths: Integers  # [R] numbers of pairs


@dataclass(frozen=True)
class Window:
    """Consecutive batches of an epoch.

    Attributes:
        pairs: [N] numbers of the pairs in the dataset, or in `augmented`, in training order.
        starts: [B + 1] where the batches start in `pairs`, and where the last one ends.
        augmented: The pairs of the window; None if they are as stored.
    """

    pairs: Pairs
    starts: Pairs
    augmented: AugmentedPairs | None = None

    def __iter__(self) -> Iterator[Pairs]:
        """Yield the pairs [N] of each batch."""
        starts = self.starts.tolist()
        for start, end in pairwise(starts):
            yield self.pairs[start:end]

    def after(self, examples: int) -> "Window":
        """Return the batches that remain after N pairs."""
        first = int(np.searchsorted(self.starts[1:], examples, side="right"))
        return replace(self, starts=self.starts[first:])

    def save(self, folder: Path) -> None:
        """Write the pairs and the starts to a folder."""
        np.save(folder / _PAIRS, self.pairs)
        np.save(folder / _STARTS, self.starts)

    @classmethod
    def load(cls, folder: Path, augmentation: Augmentation | None = None) -> "Window":
        """Map the files of a window, perhaps of augmented pairs, into memory."""
        pairs, starts = (np.load(folder / name, mmap_mode="r") for name in (_PAIRS, _STARTS))
        return cls(pairs, starts, AugmentedPairs.open(folder, augmentation))


class _Dealt(NamedTuple):
    """The runs of a window, by its epoch and its number there, and how many pairs are done."""

    epoch: int
    number: int
    runs: Runs
    done: int


class Planner:
    """Plans the windows of each epoch.

    The first process of a machine plans, and the others map its files into memory.
    """

    def __init__(
        self,
        dataset: ParallelDataset,
        config: BatchingConfig,
        *,
        seed: int,
        group: Group,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._dataset = dataset
        self._augmentation = augmentation
        self._config = config
        self._seed = seed
        self._num_pairs = len(dataset)
        if self._num_pairs > _MAX_PAIRS:
            raise DataError(
                f"the dataset has {self._num_pairs:,} training pairs, but an epoch has at most "
                f"{_MAX_PAIRS:,}: train on fewer"
            )
        window_pairs = WINDOW_PAIRS if augmentation is None else AUGMENTED_PAIRS
        self._num_windows = max(1, -(-self._num_pairs // window_pairs))
        is_weighted = any(text.weight for text in dataset.texts)
        run_pairs = 1 if self._num_windows == 1 else RUN_PAIRS
        self._mixture = (
            Mixture(dataset.texts, seed=seed, run_pairs=run_pairs) if is_weighted else None
        )
        self._buckets_per_batch = max(1, round(config.batch_tokens / config.bucket_tokens))
        self._bucket_tokens = config.batch_tokens / self._buckets_per_batch
        self._folder, self._world = group.folder, group.world

    def windows(self, epoch: int, examples: int) -> Iterator[tuple[int, Window]]:
        """Yield epoch and window after N pairs of an epoch, without end.

        Windows before the first of these are not planned.
        """
        remaining = self._remaining(epoch, examples)
        if self._folder is not None and self._world.local_rank > 0:
            for each in remaining:
                yield each.epoch, self._take(each, self._folder).after(each.done)
        for each, folder in self._with_folders(remaining):
            augmented = AugmentedPairs.open(folder, self._augmentation)
            window = self._plan(each.epoch, each.number, each.runs, augmented)
            self._give(each, window, folder)
            yield each.epoch, window.after(each.done)

    def epoch(self, epoch: int) -> Iterator[Window]:
        """Yield the windows of an epoch (from 1), planned in this process."""
        for number, runs in enumerate(self._deal(epoch)):
            yield self._plan(epoch, number, runs)

    def sample(self) -> Integers:
        """Return about a million pairs spread over the first window of an epoch, or all."""
        pairs = expand(self._deal(1)[0])
        return pairs[:: -(-len(pairs) // _BLOCK_PAIRS)].astype(np.int64)

    @cached_property
    def sample_counts(self) -> tuple[int, float, float]:
        """The numbers of pairs, and about of batches and target tokens, in the first window."""
        _, target_lengths = self._lengths(expand(self._deal(1)[0]), self._dataset)
        num_buckets = len(self._find_bucket_starts(np.sort(target_lengths))) + 1
        num_batches = -(-num_buckets // self._buckets_per_batch)
        num_tokens, growth = int(target_lengths.sum(dtype=np.int64)), 1.0
        if self._augmentation is not None:
            growth = Augmenter(self._augmentation).growth(self.sample())
        return len(target_lengths), num_batches * growth, num_tokens * growth

    def _remaining(self, epoch: int, examples: int) -> Iterator[_Dealt]:
        """Yield the windows after N pairs of an epoch, without end."""
        for each in count(epoch):
            done = examples if each == epoch else 0
            for number, runs in enumerate(self._deal(each)):
                num_pairs = int(runs.lengths.sum())
                if done < num_pairs:
                    yield _Dealt(each, number, runs, done)
                done = max(0, done - num_pairs)

    def _with_folders(self, remaining: Iterator[_Dealt]) -> Iterator[tuple[_Dealt, Path | None]]:
        """Yield windows with the folders of their augmented pairs, or None if pairs are as stored.

        The next window is augmented while this one is in use.
        """
        if self._augmentation is None:
            for each in remaining:
                if self._num_windows > 1:
                    self._read_pages(each.runs)
                yield each, None
            return
        first = next(remaining)
        with closing(AugmentingProcess(self._augmentation, self._folder)) as process:
            process.request(first.epoch, first.number, expand(first.runs))
            for each, following in pairwise(chain([first], remaining)):
                process.request(following.epoch, following.number, expand(following.runs))
                yield each, process.wait(each.epoch, each.number)

    def _give(self, dealt: _Dealt, window: Window, folder: Path | None) -> None:
        """Give a window, and the folder of its pairs, to the other processes of this machine.

        Each process maps the files through its own hard links and deletes these at once, so that
        the system frees the space when all processes have ended, even if they are killed.
        """
        if self._folder is not None:
            name = f"{dealt.epoch}-{dealt.number}"
            folder = folder or self._folder / name
            folder.mkdir(exist_ok=True)
            window.save(folder)
            for rank in range(1, self._world.local_size):
                links = self._folder / f".{name}.{rank}"
                shutil.copytree(folder, links, copy_function=os.link)
                links.rename(self._folder / f"{name}.{rank}")
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, dealt: _Dealt, shared: Path) -> Window:
        """Wait for a window that the first process of this machine gives."""
        folder = shared / f"{dealt.epoch}-{dealt.number}.{self._world.local_rank}"
        while not folder.exists():
            time.sleep(_POLL_SECONDS)
        window = Window.load(folder, self._augmentation)
        shutil.rmtree(folder, ignore_errors=True)
        return window

    def _read_pages(self, runs: Runs) -> None:
        """Ask the system to read the tokens of a window in the order in which they lie on disk.

        Otherwise, each batch reads the disk at random places, and much that it does not need.
        """
        order = np.argsort(runs.starts)
        for side in (self._dataset.source, self._dataset.target):
            side.will_need(runs.starts[order], runs.lengths[order])

    def _deal(self, epoch: int) -> list[Runs]:
        """Return the runs of each window of an epoch."""
        if self._mixture is None:
            starts = np.arange(0, self._num_pairs, RUN_PAIRS)
            runs = Runs(starts, np.minimum(RUN_PAIRS, self._num_pairs - starts))
        else:
            runs = self._mixture.runs(epoch)
        if self._num_windows == 1:
            return [runs]
        order = np.random.default_rng([self._seed, epoch]).permutation(len(runs.starts))
        starts, lengths = runs.starts[order], runs.lengths[order]
        ends_of_windows = np.arange(1, self._num_windows) * self._num_pairs // self._num_windows
        cuts = np.searchsorted(np.cumsum(lengths), ends_of_windows)
        return [*map(Runs, np.split(starts, cuts), np.split(lengths, cuts))]

    def _plan(
        self, epoch: int, number: int, runs: Runs, augmented: AugmentedPairs | None = None
    ) -> Window:
        """Plan a window: shuffle pairs, sort them by length, cut buckets, and join random ones."""
        seed = [self._seed, epoch] if self._num_windows == 1 else [self._seed, epoch, 1 + number]
        random = np.random.default_rng(seed)
        dataset, pairs = self._dataset, expand(runs)
        if augmented is not None:
            dataset, pairs = augmented.changed, np.arange(len(pairs), dtype=np.uint32)
        source_lengths, target_lengths = self._lengths(pairs, dataset)
        order = random.permutation(np.arange(len(pairs), dtype=np.uint32))
        # Stable sorts keep pairs of equal lengths in random order.
        order = order[np.argsort(source_lengths[order], kind="stable")]
        order = order[np.argsort(target_lengths[order], kind="stable")]
        starts = np.append(0, self._find_bucket_starts(target_lengths[order]))
        shuffled = random.permutation(len(starts))
        sizes = np.diff(starts, append=len(pairs))[shuffled]
        order = order[expand(Runs(starts[shuffled], sizes))]
        ends = np.cumsum(sizes)
        last_buckets = np.arange(self._buckets_per_batch, len(ends), self._buckets_per_batch) - 1
        batch_starts = np.concatenate([[0], ends[last_buckets], ends[-1:]])
        return Window(pairs[order], batch_starts.astype(np.uint32), augmented)

    def _lengths(self, pairs: Pairs, dataset: ParallelDataset) -> tuple[Lengths, Lengths]:
        """Return the source and target lengths [N] of pairs [N], EOS included.

        They are of a small type, which takes less memory and is faster to sort.
        """
        blocks = np.split(pairs, range(_BLOCK_PAIRS, len(pairs), _BLOCK_PAIRS))
        source_lengths, target_lengths = (
            np.concatenate([_narrow(side.lengths(block.astype(np.int64)) + 1) for block in blocks])
            for side in (dataset.source, dataset.target)
        )
        return source_lengths, target_lengths

    def _find_bucket_starts(self, target_lengths: Lengths) -> Integers:
        """Return where all buckets but the first start, from the sorted lengths [N] of pairs."""
        ends = np.cumsum(target_lengths, dtype=np.int64)
        num_buckets = max(1, round(ends[-1] / self._bucket_tokens))
        bucket_ends = np.arange(1, num_buckets) * (ends[-1] / num_buckets)
        # Whole numbers, so that NumPy does not convert all of `ends`.
        starts: Integers = np.searchsorted(ends, np.ceil(bucket_ends).astype(np.int64))
        return starts[np.diff(starts, prepend=0) > 0]  # a pair longer than a bucket fills several


def expand(runs: Runs) -> Pairs:
    """Return the pairs [N] of runs."""
    ends = np.cumsum(runs.lengths)
    # Negative numbers wrap around, and so do their sums.
    shifts = (runs.starts - (ends - runs.lengths)).astype(np.uint32)
    pairs = np.repeat(shifts, runs.lengths)
    pairs += np.arange(len(pairs), dtype=np.uint32)
    return pairs


def _narrow(lengths: Integers) -> Lengths:
    """Convert lengths to a small type; NumPy sorts 16 bits in linear time."""
    return lengths.astype(np.uint16 if lengths.max(initial=0) < 1 << 16 else np.uint32)


class Mixture:
    """Draws the pairs of each epoch, so that each text has its share of them.

    An epoch has as many pairs as all texts together. Each text is read in a random order, which
    ends and begins anew whatever the epoch: no pair is drawn again before all others of its text
    have been. So a text with half of its natural share is seen once in two epochs, and one with
    2.5 times its share two or three times in each. The draws only depend on texts, seed and epoch.

    Args:
        texts: The texts in the order of their pairs, each with a weight.
        seed: Random seed.
        run_pairs: Draw runs of N consecutive pairs.

    Attributes:
        counts: [number of texts] pairs of each text in every epoch.
    """

    def __init__(self, texts: Sequence[TrainingText], *, seed: int, run_pairs: int = 1) -> None:
        self._sizes = [text.kept for text in texts]
        self._seed = seed
        self._run_pairs = run_pairs
        self.counts = apportion(sum(self._sizes), [text.weight or 0.0 for text in texts])
        for text, num_pairs in zip(texts, self.counts, strict=True):
            if not num_pairs:
                raise DataError(
                    f"weight {text.weight or 0:g} of the training text {text.name} is less than "
                    f"one pair in an epoch of {sum(self._sizes):,}: raise it, or remove the text"
                )

    def runs(self, epoch: int) -> Runs:
        """Return the runs of an epoch (from 1), text by text."""
        drawn = [self._draw(number, epoch) for number in range(len(self._sizes))]
        return Runs(*map(np.concatenate, zip(*drawn, strict=True)))

    def _draw(self, number: int, epoch: int) -> Runs:
        """Return the runs of one text in an epoch; the first and last may be parts of runs."""
        size, count = self._sizes[number], self.counts[number]
        start, end = (epoch - 1) * count, epoch * count
        rounds = range(start // size, -(-end // size))
        generators = (np.random.default_rng([self._seed, number, i, _DRAWS]) for i in rounds)
        num_runs = -(-size // self._run_pairs)
        drawn = np.concatenate([generator.permutation(num_runs) for generator in generators])
        starts = self._run_pairs * drawn
        lengths = np.minimum(self._run_pairs, size - starts)
        ends = rounds.start * size + np.cumsum(lengths)
        done = np.maximum(0, start - (ends - lengths))  # pairs drawn by the epochs before
        lengths = lengths - done - np.maximum(0, ends - end)
        is_drawn = lengths > 0
        return Runs((sum(self._sizes[:number]) + starts + done)[is_drawn], lengths[is_drawn])


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a total in proportion to weights into whole numbers, by largest remainder."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts
