"""Batches of sentence pairs by approximate length (Vaswani et al. 2017, §5.1)."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tfm.config import BatchingConfig
from tfm.dataset.augmentation import Augmentation, AugmentedPairs
from tfm.dataset.parallel import Integers, ParallelDataset
from tfm.dataset.plan import Planner
from tfm.machine.background import read_ahead
from tfm.machine.group import Group
from tfm.model.packing import Packing, copy_to_device
from tfm.vocabulary.subword import BOS, PAD

# Tokens per side of a microbatch: enough to keep a CPU busy.
DEFAULT_MAX_TOKENS = 8_192
_WINDOW = 1 << 32  # more pairs than a dataset or a window has
PADDING = -1  # the target of spare rows, which have no loss and no gradient


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A packed batch: B sentence pairs, concatenated without padding between sentences.

    The token axes end in a few rows of PAD, at least one: with few distinct sizes, compiled kernels
    are reused.

    Attributes:
        source: [N] token ids, each sentence followed by EOS.
        sources: Packing of the B sources, EOS included.
        target_input: [M] token ids, each sentence preceded by BOS.
        target_output: [M] token ids, each sentence followed by EOS: `target_input` shifted by one.
            Spare rows are `PADDING`.
        targets: Packing of the B targets, EOS included.
    """

    source: Tensor
    sources: Packing
    target_input: Tensor
    target_output: Tensor
    targets: Packing

    @property
    def num_tokens(self) -> int:
        """The number of target tokens, EOS included."""
        return self.targets.num_tokens

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device, without synchronizing; any thread may call it."""
        if device.type == "cpu":
            return self
        # A new thread would pin memory on the first GPU.
        with torch.cuda.device(device if device.type == "cuda" else -1):
            tokens = {
                name: copy_to_device(getattr(self, name), device)
                for name in ("source", "target_input", "target_output")
            }
            return Batch(sources=self.sources.to(device), targets=self.targets.to(device), **tokens)


class Batcher:
    """Plans and builds the batches of each epoch.

    The content and order of batches depend only on data, settings, seed and epoch: not on devices,
    nor on the step at which a run was resumed. `coarse_rows` makes the sizes of token axes few,
    because compiled layers are compiled for each. `packed` says that layers compute batches without
    padding, so that microbatches are limited by their tokens.
    """

    def __init__(
        self,
        dataset: ParallelDataset,
        config: BatchingConfig,
        *,
        seed: int,
        coarse_rows: bool = False,
        packed: bool = False,
        group: Group | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._dataset = dataset
        self._windows: dict[int, AugmentedPairs] = {}  # the newest two, by number
        self._coarse_rows, self._packed = coarse_rows, packed
        self._config = config
        self._seed = seed
        self._text_ends = np.cumsum([text.kept for text in dataset.texts])
        self._planner = Planner(
            dataset, config, seed=seed, group=group or Group(), augmentation=augmentation
        )

    def lengths(self, indices: Integers) -> tuple[Integers, Integers]:
        """Return the source and target lengths [B] of pairs [B], EOS included."""
        dataset, indices, _ = self._locate(indices)
        return dataset.source.lengths(indices) + 1, dataset.target.lengths(indices) + 1

    def pairs(self, indices: Integers) -> Integers:
        """Return the numbers [B] in the dataset of pairs [B]."""
        return self._locate(indices)[2]

    def _locate(self, indices: Integers) -> tuple[ParallelDataset, Integers, Integers]:
        """Return what has the pairs [B] of a batch, their indices there, and in the dataset.

        Indices of augmented pairs begin at the number of their window times `_WINDOW`.
        """
        number = int(indices[0]) // _WINDOW if len(indices) else 0
        if not number:
            return self._dataset, indices, indices
        rows, window = indices - number * _WINDOW, self._windows[number]
        return window.changed, rows, window.numbers[rows].astype(np.int64)

    def longest(self, indices: Integers) -> int:
        """Return the length of the longest side of pairs [B], EOS included; 0 without pairs."""
        return int(np.maximum(*self.lengths(indices)).max(initial=0))

    def microbatch_tokens(self, indices: Integers) -> int:
        """Return the tokens of the larger side of a microbatch [B], as `split` counts them."""
        if self._packed:
            return max(int(lengths.sum()) for lengths in self.lengths(indices))
        return len(indices) * self.longest(indices)

    def num_batches(self) -> int:
        """Return the number of batches in the first epoch; an estimate if it has several windows.

        With weights or augmented pairs, other epochs differ slightly.
        """
        num_pairs, num_batches, _ = self._planner.sample_counts
        return round(len(self._dataset) / num_pairs * num_batches)

    @property
    def num_tokens(self) -> int:
        """The number of target tokens in the first epoch, EOS included, or an estimate of it."""
        num_pairs, _, num_tokens = self._planner.sample_counts
        return round(len(self._dataset) / num_pairs * num_tokens)

    def sample(self) -> Integers:
        """Return the indices to compute an epoch's means from: all, or about a million."""
        return self._planner.sample()

    def epoch(self, epoch: int) -> list[Integers]:
        """Return the indices [B] of each batch of an epoch (from 1), as stored, in their order."""
        windows = self._planner.epoch(epoch)
        return [pairs.astype(np.int64) for window in windows for pairs in window]

    def batches(self, epoch: int = 1, examples: int = 0) -> Iterator[tuple[int, Integers]]:
        """Yield epoch and indices [B] of the batches after N pairs of an epoch, without end."""
        # Each window is planned while the one before is in use.
        windows = read_ahead(self._planner.windows(epoch, examples))
        for number, (each, window) in enumerate(windows, 1):
            start = 0
            if window.augmented is not None:
                self._windows[number], start = window.augmented, number * _WINDOW
                self._windows.pop(number - 2, None)
            for pairs in window:
                yield each, pairs.astype(np.int64) + start

    def split(
        self, indices: Integers, *, max_tokens: int | None = None, multiple_of: int = 1
    ) -> list[Integers]:
        """Split a batch into microbatches that fit into the memory of a device.

        Args:
            indices: [B] pairs of the batch, as indices of the dataset.
            max_tokens: Maximum number of tokens per side of a microbatch, with padding unless
                batches are `packed`; by default the settings' `max_tokens`, or else
                `DEFAULT_MAX_TOKENS`.
            multiple_of: Make the number of microbatches a multiple of this, if there are enough
                sentences: each of N processes then computes equally many.

        Returns:
            Indices of microbatches, the longest sentences first. A sentence over `max_tokens` is a
            separate microbatch. They are about equal in size as it is limited, or with
            `multiple_of` in tokens, so that processes do not wait for each other.
        """
        lengths = np.stack(self.lengths(indices))
        order = np.argsort(-lengths.max(0), kind="stable")
        indices, lengths = indices[order], lengths[:, order]
        limit = max_tokens or self._config.max_tokens or DEFAULT_MAX_TOKENS
        if self._packed:
            find_stop = partial(_packed_stop, np.pad(np.cumsum(lengths, axis=1), ((0, 0), (1, 0))))
        else:
            find_stop = partial(_padded_stop, lengths.max(0))
        find_starts = partial(_find_starts, find_stop, len(indices))
        num_microbatches = -(-len(find_starts(limit)) // multiple_of) * multiple_of
        if multiple_of > 1:
            ends = np.cumsum(lengths.sum(0))
            starts = _equal_starts(ends, num_microbatches)
            while any(b > find_stop(a, limit) for a, b in pairwise([*starts, len(indices)])):
                num_microbatches += multiple_of
                starts = _equal_starts(ends, num_microbatches)
        else:
            # The smallest size limit that needs no more microbatches makes their sizes most even.
            sizes = range(1, limit + 1)
            index = bisect_left(
                sizes, True, key=lambda size: len(find_starts(size)) <= num_microbatches
            )
            starts = find_starts(sizes[min(index, limit - 1)])
        microbatches = np.split(indices, starts[1:])
        while len(microbatches) < min(num_microbatches, len(indices)):
            largest = max(range(len(microbatches)), key=lambda index: len(microbatches[index]))
            halves = np.array_split(microbatches[largest], 2)
            microbatches[largest : largest + 1] = halves
        return microbatches

    def batch(self, indices: Integers) -> Batch:
        """Build the batch or microbatch of pairs [B], on the CPU."""
        return build_batch(*self._locate(indices)[:2], coarse_rows=self._coarse_rows)

    def num_pairs_by_text(self, indices: Integers) -> tuple[int, ...]:
        """Return how many of the pairs [B] are from each text; empty if there is one text."""
        if len(self._text_ends) < 2:
            return ()
        texts = np.searchsorted(self._text_ends, self.pairs(indices), side="right")
        return tuple(np.bincount(texts, minlength=len(self._text_ends)).tolist())

    def text_samples(self, num_pairs: int) -> list[Integers]:
        """Return at most N random pairs of each text; none if there is one text."""
        if len(self._text_ends) < 2:
            return []
        random, samples = np.random.default_rng(self._seed), []
        for end, text in zip(self._text_ends, self._dataset.texts, strict=True):
            sample = random.choice(text.kept, min(num_pairs, text.kept), replace=False)
            samples.append(end - text.kept + sample)
        return samples


def _padded_stop(lengths: Integers, start: int, max_tokens: int) -> int:
    """Return where a microbatch from `start` has to end, of pairs of descending lengths [B]."""
    return start + max(1, max_tokens // int(lengths[start]))


def _packed_stop(ends: Integers, start: int, max_tokens: int) -> int:
    """Return where it has to end without padding; `ends` [2, B + 1] are tokens before each pair."""
    stops = (np.searchsorted(side, side[start] + max_tokens, side="right") - 1 for side in ends)
    return max(start + 1, int(min(stops)))


def _find_starts(
    find_stop: Callable[[int, int], int], num_pairs: int, max_tokens: int
) -> list[int]:
    """Return where microbatches of at most `max_tokens` tokens per side start."""
    starts, start = [], 0
    while start < num_pairs:
        starts.append(start)
        start = find_stop(start, max_tokens)
    return starts


def _equal_starts(ends: Integers, num_parts: int) -> list[int]:
    """Return where at most N parts of about equally many tokens start.

    `ends` [B] are the numbers of tokens up to the end of each sentence.
    """
    middles = ends - np.diff(ends, prepend=0) / 2
    starts = np.searchsorted(middles, np.arange(num_parts) * (ends[-1] / num_parts))
    return [*map(int, np.unique(starts[starts < len(ends)]))]


def build_batch(dataset: ParallelDataset, indices: Integers, *, coarse_rows: bool = False) -> Batch:
    """Pack sentence pairs [B] and add BOS and EOS."""
    source_ids, source_lengths = dataset.source.concatenate(indices)
    target_ids, target_lengths = dataset.target.concatenate(indices)
    source_rows, target_rows = numbers_of_rows(len(source_ids), len(target_ids), coarse=coarse_rows)
    source, sources = _pack(source_ids, source_lengths, source_rows)
    target_output, targets = _pack(target_ids, target_lengths, target_rows)
    target_input = torch.full_like(target_output, PAD)
    target_input[1 : targets.num_tokens] = target_output[: targets.num_tokens - 1]
    target_output[targets.num_tokens :] = PADDING
    target_input[targets.lengths.cumsum(0) - targets.lengths] = BOS
    return Batch(
        source=source,
        sources=sources,
        target_input=target_input,
        target_output=target_output,
        targets=targets,
    )


def _pack(ids: Integers, lengths: Integers, num_rows: int) -> tuple[Tensor, Packing]:
    """Return the ids [N] of sentences, each followed by EOS, and their packing."""
    ids = np.pad(ids, (0, num_rows - len(ids)))
    return torch.from_numpy(ids), Packing(torch.from_numpy(lengths), num_rows)


def numbers_of_rows(num_sources: int, num_targets: int, *, coarse: bool) -> tuple[int, int]:
    """Return the numbers of rows for source and target tokens, at least one more than these.

    They have six significant bits. If `coarse`, they are multiples of 512, and that of sources,
    which varies more from batch to batch, has four bits.
    """
    least, source_bits = (512, 4) if coarse else (1, 6)
    return _round_up(num_sources, source_bits, least), _round_up(num_targets, 6, least)


def _round_up(num_tokens: int, bits: int, multiple_of: int) -> int:
    step = max(multiple_of, 1 << max(0, num_tokens.bit_length() - bits))
    return (num_tokens // step + 1) * step
