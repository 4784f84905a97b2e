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
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfm.config import BatchingConfig
from tfm.dataset.parallel import Integers, ParallelDataset
from tfm.dataset.shards import TrainingText
from tfm.disk.files import atomic_write
from tfm.errors import DataError
from tfm.machine.group import Group

WINDOW_PAIRS = 10_000_000
RUN_PAIRS = 4_096

_MAX_PAIRS = 1 << 32
_BLOCK_PAIRS = 1 << 20  # to read lengths of at once
_POLL_SECONDS = 0.01
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
        pairs: [N] numbers of the pairs, in training order.
        starts: [B + 1] where the batches start in `pairs`, and where the last one ends.
    """

    pairs: Pairs
    starts: Pairs

    def __iter__(self) -> Iterator[Pairs]:
        """Yield the pairs [N] of each batch."""
        starts = self.starts.tolist()
        for start, end in pairwise(starts):
            yield self.pairs[start:end]

    def after(self, examples: int) -> "Window":
        """Return the batches that remain after N pairs."""
        first = int(np.searchsorted(self.starts[1:], examples, side="right"))
        return replace(self, starts=self.starts[first:])

    def save(self, path: Path) -> None:
        """Write one array: the number of batches, their starts, and the pairs."""
        num_batches = np.array([len(self.starts) - 1], dtype=np.uint32)
        with atomic_write(path) as file:
            np.save(file, np.concatenate([num_batches, self.starts, self.pairs]))

    @classmethod
    def load(cls, path: Path) -> "Window":
        """Map the file of a window into memory."""
        array = np.load(path, mmap_mode="r")
        starts, pairs = np.split(array[1:], [int(array[0]) + 1])
        return cls(pairs, starts)


class Planner:
    """Plans the windows of each epoch.

    The first process of a machine plans, and the others map its files into memory.
    """

    def __init__(
        self, dataset: ParallelDataset, config: BatchingConfig, *, seed: int, group: Group
    ) -> None:
        self._dataset = dataset
        self._config = config
        self._seed = seed
        self._num_pairs = len(dataset)
        if self._num_pairs > _MAX_PAIRS:
            raise DataError(
                f"the dataset has {self._num_pairs:,} training pairs, but an epoch has at most "
                f"{_MAX_PAIRS:,}: train on fewer"
            )
        self._num_windows = max(1, -(-self._num_pairs // WINDOW_PAIRS))
        is_weighted = any(text.weight for text in dataset.texts)
        run_pairs = 1 if self._num_windows == 1 else RUN_PAIRS
        self._mixture = (
            Mixture(dataset.texts, seed=seed, run_pairs=run_pairs) if is_weighted else None
        )
        self._buckets_per_batch = max(1, round(config.batch_tokens / config.bucket_tokens))
        self._folder, self._world = group.folder, group.world

    def windows(self, epoch: int, examples: int) -> Iterator[tuple[int, Window]]:
        """Yield epoch and window after N pairs of an epoch, without end.

        Windows before the first of these are not planned.
        """
        for each in count(epoch):
            done = examples if each == epoch else 0
            for number, runs in enumerate(self._deal(each)):
                num_pairs = int(runs.lengths.sum())
                if done < num_pairs:
                    yield each, self._shared(each, number, runs).after(done)
                done = max(0, done - num_pairs)

    def epoch(self, epoch: int) -> Iterator[Window]:
        """Yield the windows of an epoch (from 1), planned in this process."""
        for number, runs in enumerate(self._deal(epoch)):
            yield self._plan(epoch, number, runs)

    def sample(self) -> Integers:
        """Return about a million pairs spread over the first window of an epoch, or all."""
        pairs = expand(self._deal(1)[0])
        return pairs[:: -(-len(pairs) // _BLOCK_PAIRS)].astype(np.int64)

    @cached_property
    def sample_counts(self) -> tuple[int, int, int]:
        """The numbers of pairs, batches and target tokens in the first window of epoch 1."""
        _, target_lengths = self._lengths(expand(self._deal(1)[0]))
        num_buckets = len(self._find_bucket_starts(np.sort(target_lengths))) + 1
        num_batches = -(-num_buckets // self._buckets_per_batch)
        return len(target_lengths), num_batches, int(target_lengths.sum(dtype=np.int64))

    def _shared(self, epoch: int, number: int, runs: Runs) -> Window:
        """Return a window that the first process of this machine plans for all of them.

        Each process maps the file through its own hard link and deletes the link at once, so that
        the system frees the space when all processes have ended, even if they are killed.
        """
        is_first = self._world.local_rank == 0
        if is_first and self._num_windows > 1:
            self._read_pages(runs)
        if self._folder is None:
            return self._plan(epoch, number, runs)
        path = self._folder / f"{epoch}-{number}.{self._world.local_rank}"
        if is_first:
            self._plan(epoch, number, runs).save(path)
            for rank in range(1, self._world.local_size):
                os.link(path, path.with_suffix(f".{rank}"))
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        window = Window.load(path)
        path.unlink()
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

    def _plan(self, epoch: int, number: int, runs: Runs) -> Window:
        """Plan a window: shuffle pairs, sort them by length, cut buckets, and join random ones."""
        seed = [self._seed, epoch] if self._num_windows == 1 else [self._seed, epoch, 1 + number]
        random = np.random.default_rng(seed)
        pairs = expand(runs)
        source_lengths, target_lengths = self._lengths(pairs)
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
        return Window(pairs[order], batch_starts.astype(np.uint32))

    def _lengths(self, pairs: Pairs) -> tuple[Lengths, Lengths]:
        """Return the source and target lengths [N] of pairs [N], EOS included.

        They are of a small type, which takes less memory and is faster to sort.
        """
        blocks = np.split(pairs, range(_BLOCK_PAIRS, len(pairs), _BLOCK_PAIRS))
        source_lengths, target_lengths = (
            np.concatenate([_narrow(side.lengths(block.astype(np.int64)) + 1) for block in blocks])
            for side in (self._dataset.source, self._dataset.target)
        )
        return source_lengths, target_lengths

    def _find_bucket_starts(self, target_lengths: Lengths) -> Integers:
        """Return where all buckets but the first start, from the sorted lengths [N] of pairs."""
        ends = np.cumsum(target_lengths, dtype=np.int64)
        bucket_tokens = min(self._config.bucket_tokens, self._config.batch_tokens)
        num_buckets = max(1, round(ends[-1] / bucket_tokens))
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
