"""Batches of sentence pairs by approximate length (Vaswani et al. 2017, §5.1)."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tfm.backends.packing import Packing
from tfm.config import BatchingConfig
from tfm.data.dataset import ParallelDataset, Rows, TokenSequences
from tfm.data.subword import BOS, EOS, PAD


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sentence pairs as a model is trained on them, one after another, without padding.

    The axes of tokens are a little longer than what they hold: sizes repeat, which spares fast
    kernels new preparations, and there is always a row to spare. Spare rows hold PAD.

    Attributes:
        source: [N] token ids, each sentence closed by EOS.
        sources: Packing of the B sources, EOS included.
        target_input: [M] token ids, each sentence opened by BOS.
        target_output: [M] token ids, each sentence closed by EOS: at each position what comes next.
        targets: Packing of the B targets, EOS included.
    """

    source: Tensor
    sources: Packing
    target_input: Tensor
    target_output: Tensor
    targets: Packing

    @property
    def num_tokens(self) -> int:
        """The number of target tokens."""
        return self.targets.num_tokens

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch with its tokens on a device."""
        if device.type == "cpu":
            return self
        tokens = (self.source, self.target_input, self.target_output)
        source, target_input, target_output = (
            x.pin_memory().to(device, non_blocking=True) for x in tokens
        )
        return Batch(
            source=source,
            sources=self.sources.to(device),
            target_input=target_input,
            target_output=target_output,
            targets=self.targets.to(device),
        )


class Batcher:
    """Plans the batches of each epoch and builds them.

    What is in a batch, and the order of batches, depend on data, settings, seed and epoch alone:
    not on devices, nor on how far a run came before it was resumed.

    Args:
        dataset: The pairs.
        config: How large batches are.
        seed: Of the order.
    """

    def __init__(self, dataset: ParallelDataset, config: BatchingConfig, *, seed: int) -> None:
        self._dataset = dataset
        self._config = config
        self._seed = seed
        # With EOS, as the model will see them.
        self._source_lengths = dataset.source.lengths() + 1
        self._target_lengths = dataset.target.lengths() + 1
        self._bucket_starts = self._cut(np.cumsum(np.sort(self._target_lengths)))

    @property
    def num_tokens(self) -> int:
        """Target tokens of an epoch."""
        return int(self._target_lengths.sum())

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        """[N] source and target lengths of some pairs, EOS included."""
        return self._source_lengths[rows], self._target_lengths[rows]

    def longest(self, rows: Rows) -> int:
        """Tokens of the longest side of some pairs, EOS included."""
        return int(np.maximum(*self.lengths(rows)).max(initial=0))

    def num_batches(self) -> int:
        """Batches of an epoch, the same in each."""
        return -(-(len(self._bucket_starts) + 1) // self._buckets_per_batch())

    def epoch(self, epoch: int) -> list[Rows]:
        """The rows of each batch of an epoch, in training order.

        Pairs are shuffled, sorted by length, cut into buckets of about `bucket_tokens` target
        tokens, and shuffled buckets are joined to batches of about `batch_tokens`.

        Args:
            epoch: Number of the epoch, counted from 1.
        """
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._dataset))
        # Stable sorts: pairs of equal lengths stay in random order.
        order = order[np.argsort(self._source_lengths[order], kind="stable")]
        order = order[np.argsort(self._target_lengths[order], kind="stable")]
        buckets = np.split(order, self._bucket_starts)
        shuffled = [buckets[index] for index in random.permutation(len(buckets))]
        size = self._buckets_per_batch()
        groups = (shuffled[start : start + size] for start in range(0, len(buckets), size))
        return [np.concatenate(group) for group in groups]

    def split(
        self, rows: Rows, *, max_tokens: int | None = None, multiple_of: int = 1
    ) -> list[Rows]:
        """Split a batch into microbatches that a device can take at once.

        Args:
            rows: The rows of the batch.
            max_tokens: Most tokens of a microbatch a side, with padding; the settings' if not
                given.
            multiple_of: The number of microbatches is a multiple of it, if the sentences are
                enough.

        Returns:
            Rows of microbatches of about equal size, the longest sentences first; a sentence beyond
            `max_tokens` is a microbatch of its own.
        """
        longest = np.maximum(self._source_lengths[rows], self._target_lengths[rows])
        order = np.argsort(-longest, kind="stable")
        rows, lengths = rows[order], longest[order]
        limit = max_tokens or self._config.max_tokens
        needed = -(-len(_starts(lengths, limit)) // multiple_of) * multiple_of
        # The smallest size that needs no more microbatches than that makes them alike.
        sizes = range(1, limit + 1)
        most = bisect_left(sizes, True, key=lambda n: len(_starts(lengths, n)) <= needed)
        starts = _starts(lengths, sizes[min(most, limit - 1)])
        microbatches = np.split(rows, starts[1:])
        while len(microbatches) < min(needed, len(rows)):
            largest = max(range(len(microbatches)), key=lambda index: len(microbatches[index]))
            halves = np.array_split(microbatches[largest], 2)
            microbatches[largest : largest + 1] = halves
        return microbatches

    def batch(self, rows: Rows) -> Batch:
        """Return the batch, or microbatch, of some pairs, on the CPU."""
        return build_batch(self._dataset, rows)

    def _cut(self, ends: Rows) -> Rows:
        """Where buckets start, but the first, among the pairs sorted by length.

        Args:
            ends: Target tokens up to and with each pair.
        """
        bucket_tokens = min(self._config.bucket_tokens, self._config.batch_tokens)
        num_buckets = max(1, round(ends[-1] / bucket_tokens))
        bucket_ends = np.arange(1, num_buckets) * (ends[-1] / num_buckets)
        starts = np.searchsorted(ends, bucket_ends)
        return np.unique(starts[starts > 0])  # a pair longer than a bucket fills several

    def _buckets_per_batch(self) -> int:
        return max(1, round(self._config.batch_tokens / self._config.bucket_tokens))


def _starts(lengths: Rows, max_tokens: int) -> list[int]:
    """Return where microbatches of at most `max_tokens` tokens, with padding, start.

    Args:
        lengths: [N] lengths of the sentences, falling.
        max_tokens: Most tokens of a microbatch.
    """
    starts, start = [], 0
    while start < len(lengths):
        starts.append(start)
        start += max(1, max_tokens // int(lengths[start]))
    return starts


def build_batch(dataset: ParallelDataset, rows: Rows) -> Batch:
    """Gather sentence pairs and add BOS and EOS.

    Args:
        dataset: The pairs.
        rows: [B] which of them.
    """
    source, sources = _packed(dataset.source, rows)
    target_output, targets = _packed(dataset.target, rows)
    target_input = torch.full_like(target_output, PAD)
    target_input[1 : targets.num_tokens] = target_output[: targets.num_tokens - 1]
    target_input[targets.lengths.cumsum(0) - targets.lengths] = BOS
    return Batch(
        source=source,
        sources=sources,
        target_input=target_input,
        target_output=target_output,
        targets=targets,
    )


def _packed(sequences: TokenSequences, rows: Rows) -> tuple[Tensor, Packing]:
    """Return ids [num_rows(N)] of sentences closed by EOS, and their packing."""
    ids, lengths = sequences.joined(rows, gap=1)
    lengths = lengths + 1
    ids[np.cumsum(lengths) - 1] = EOS
    ids = np.pad(ids, (0, num_rows(len(ids)) - len(ids)))
    return torch.from_numpy(ids), Packing(torch.from_numpy(lengths), len(ids))


def num_rows(num_tokens: int) -> int:
    """Rows of an axis that is to hold so many tokens: more than that, of six significant bits."""
    step = 1 << max(0, num_tokens.bit_length() - 6)
    return (num_tokens // step + 1) * step
