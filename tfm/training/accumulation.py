"""The gradient of a step: of microbatches that fit into memory, summed over all processes."""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tfm.backends.plain import TrainingBackend
from tfm.config import RunConfig
from tfm.dataset.batching import DEFAULT_MAX_TOKENS, Batch, Batcher
from tfm.dataset.parallel import Integers
from tfm.errors import TrainingError
from tfm.machine.compute import Compute, device_memory_bytes, is_out_of_memory
from tfm.machine.group import Group
from tfm.machine.memory import USABLE_SHARE, PeakMemory
from tfm.model.cost import Cost
from tfm.training.gradients import Gradients, build_gradients
from tfm.training.loss import BatchLoss
from tfm.training.progress import ControlFlags, DeviceClock

Poll = Callable[[], ControlFlags]

_UNLIMITED = 1 << 30  # tokens
_MIN_TOKENS = 256
_GRADIENT_BYTES = 4  # of a parameter


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of a step, with the microbatches that this process computes."""

    indices: Integers  # of all pairs
    epoch: int  # counted from 1
    max_tokens: int  # of a microbatch
    microbatches: list[Integers]  # of all processes
    own: list[tuple[int, Batch]]  # by index among all, on the device
    clock: DeviceClock | None = None  # with a mark where the wait for the batch began


class GradientAccumulation:
    """Computes gradients of batches, together with the other processes of the group.

    Dropout depends only on the seed, the step and the microbatch.

    Attributes:
        max_tokens: The maximum number of tokens per side of a microbatch; halved on all processes
            when a device runs out of memory.
        out_of_memory: How often that happened.
        num_dropout_shards: The number of microbatches is a multiple of it.
    """

    def __init__(
        self,
        loss: BatchLoss,
        batcher: Batcher,
        run: RunConfig,
        compute: Compute,
        *,
        cost: Cost,
        backend: TrainingBackend,
        group: Group,
    ) -> None:
        self._loss = loss
        self._batcher = batcher
        self._run = run
        self._device = compute.device
        self._backend = backend
        self._group = group
        self._gradients = self._new_gradients()
        self.max_tokens = max_microbatch_tokens(
            run,
            self._device,
            cost,
            num_processes=group.world.size,
            packed=backend.packs(loss.model),
            memory_bytes=device_memory_bytes(self._device),
        )
        self.out_of_memory = 0
        # A multiple of the processes, so that all compute equally many microbatches.
        self.num_dropout_shards = math.lcm(run.batching.num_dropout_shards, group.world.size)

    def build(self, indices: Integers, *, epoch: int = 1) -> StepBatch:
        """Build this process's microbatches of a step on its device."""
        max_tokens, world = self.max_tokens, self._group.world
        microbatches = self._batcher.split(
            indices, max_tokens=max_tokens, multiple_of=self.num_dropout_shards
        )
        num_rounds = -(-len(microbatches) // world.size)
        numbers = range(world.rank, num_rounds * world.size, world.size)
        return StepBatch(
            indices=indices,
            epoch=epoch,
            max_tokens=max_tokens,
            microbatches=microbatches,
            # A rank that has no microbatch computes the first microbatch, with weight 0.
            own=[
                (number, self._batch(microbatches[number if number < len(microbatches) else 0]))
                for number in numbers
            ],
        )

    def fit_memory(self, batch: StepBatch, *, later_bytes: int) -> None:
        """Make microbatches as small as the memory of all GPUs requires, before the first step.

        Several processes on GPUs try the largest microbatches, unless their size is set. A single
        process starts with the size that an estimate allows. All processes must call it together.

        Args:
            batch: The first batch.
            later_bytes: The memory of the device that the first update will take.
        """
        is_set = self._run.batching.max_tokens is not None
        if self._group.is_alone or is_set or self._device.type != "cuda":
            return
        while self._group.largest([not self._fits(batch, later_bytes)])[0]:
            self._use_smaller_microbatches(batch, 1)
            batch = self.build(batch.indices)

    def compute(
        self, batch: StepBatch, weight: float | Tensor, *, step: int, poll: Poll
    ) -> tuple[Tensor | None, ControlFlags]:
        """Compute the gradient of a batch's weighted loss, in smaller parts if memory runs out.

        Returns:
            The [2] sums of loss and negative log-likelihood over all ranks, or None after a stop;
            and the flags, combined over all ranks.
        """
        while True:
            if batch.max_tokens != self.max_tokens:
                batch = self.build(batch.indices, epoch=batch.epoch)
            sums, flags = self._accumulate(batch, weight, step, poll)
            if flags.stop or not flags.out_of_memory:
                return sums, flags
            self._use_smaller_microbatches(batch, step)

    def _accumulate(
        self, batch: StepBatch, weight: float | Tensor, step: int, poll: Poll
    ) -> tuple[Tensor | None, ControlFlags]:
        """Return the same, or None if memory has run out on any rank.

        Ranks sum their gradients in the last microbatch, so all must take part in it. They exchange
        their flags before it, if there are others, and after it, because memory may run out in it.
        """
        self._loss.zero_grad()  # of an attempt that failed
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        *others, last = range(len(batch.own))
        fits, flags = True, ControlFlags()
        for number in others:
            if not fits or (poll().stop and not self._gradients.always_waits):
                break
            fits = self._add(sums, batch, number, weight, step)
        if others or self._group.is_alone:
            flags = self._exchange_flags(poll, fits=fits)
        if flags.stop or flags.out_of_memory:
            return None, flags
        fits = self._add(sums, batch, last, weight, step)
        if not fits:
            self._gradients.complete()
        if not fits or not self._group.is_alone:
            flags = self._exchange_flags(poll, fits=fits)
        if flags.stop or flags.out_of_memory:
            return None, flags
        self._group.heartbeat(f"step {step}, sums of losses", waits=True)
        return self._group.sum(sums), flags

    def _exchange_flags(self, poll: Poll, *, fits: bool) -> ControlFlags:
        """Combine the flags of all processes."""
        self._group.heartbeat("the exchange of control flags", waits=True)
        own = replace(poll(), out_of_memory=not fits)
        stop, *requests = self._group.largest([*map(int, astuple(own))])
        return ControlFlags(stop, *map(bool, requests))

    def _add(
        self, sums: Tensor, batch: StepBatch, number: int, weight: float | Tensor, step: int
    ) -> bool:
        """Add a microbatch's loss and negative log-likelihood to `sums` [2], and its gradient.

        Return False if memory has run out.
        """
        try:
            sums += self._forward_backward(batch, number, weight, step)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self._gradients.always_waits:  # the other ranks wait for its weights
                raise self._too_large(batch, step) from error
            return False
        return True

    def _forward_backward(
        self, batch: StepBatch, number: int, weight: float | Tensor, step: int
    ) -> Tensor:
        """Add the gradient of a microbatch's weighted loss to the gradient of the batch.

        Return [2] sums of loss and negative log-likelihood.
        """
        index, microbatch = batch.own[number]
        is_real, is_last = index < len(batch.microbatches), number == len(batch.own) - 1
        always_waits = self._gradients.always_waits
        phase = f"microbatch {index + 1} of {len(batch.microbatches)}"
        self._group.heartbeat(f"step {step}, {phase}", waits=always_waits)
        with self._gradients.accumulate(is_last=is_last):
            self._backend.seed(_derive_seed(self._run.training.seed, step, index))
            loss, nll = self._gradients.loss(microbatch)
            self._group.heartbeat(
                f"step {step}, gradient of {phase}", waits=is_last or always_waits
            )
            (loss * (weight if is_real else 0.0)).backward()  # type: ignore[no-untyped-call]
        sums = torch.stack([loss.detach(), nll])
        return sums if is_real else torch.zeros_like(sums)

    def _fits(self, batch: StepBatch, later_bytes: int) -> bool:
        """Return whether this device can compute the largest microbatches, with memory to spare."""
        peak, sums = PeakMemory(self._device), torch.zeros(2, device=self._device)
        for indices in largest_microbatches(self._batcher, batch.microbatches):
            trial = replace(batch, microbatches=[indices], own=[(0, self._batch(indices))] * 2)
            # Only ranks that hold parts of the weights must sum gradients, as at the end of a step.
            number = int(self._gradients.always_waits)
            if not self._add(sums, trial, number, 0.0, step=1):
                return False
        self._loss.zero_grad()
        return not peak.is_short(later_bytes=later_bytes)

    def _use_smaller_microbatches(self, batch: StepBatch, step: int) -> None:
        """Split this and later batches into microbatches of half the size, if that is possible."""
        divisible = [each for each in batch.microbatches if len(each) > 1]
        if not divisible:
            raise self._too_large(batch, step)
        self.max_tokens = max(map(self._batcher.microbatch_tokens, divisible)) // 2
        self.out_of_memory += 1
        self._loss.zero_grad()
        if not self._group.is_alone:  # a backward pass may not have ended
            self._gradients = Gradients(self._loss)
            gc.collect()  # which removes the hooks of the older gradients
            self._gradients = self._new_gradients()
        torch.cuda.empty_cache()  # so that blocks of other sizes fit

    def _too_large(self, batch: StepBatch, step: int) -> TrainingError:
        rank = "" if self._group.is_alone else f"rank {self._group.world.rank}, "
        num_tokens = max(map(self._batcher.microbatch_tokens, batch.microbatches))
        return TrainingError(
            f"{rank}step {step}: out of memory with a microbatch of {num_tokens:,} tokens per "
            "side: use a smaller --max-tokens, or a smaller model"
        )

    def _batch(self, indices: Integers) -> Batch:
        return self._batcher.batch(indices).to(self._device)

    def _new_gradients(self) -> Gradients:
        """Return the gradients of all processes, which must call it together."""
        example = self._batch(np.zeros(1, dtype=np.int64))
        return build_gradients(self._loss, self._group, example, shard=self._run.training.shard)


def max_microbatch_tokens(
    run: RunConfig,
    device: torch.device,
    cost: Cost,
    *,
    num_processes: int = 1,
    packed: bool = False,
    memory_bytes: float = math.inf,
) -> int:
    """Return the maximum number of tokens per side of a microbatch of a new run.

    If it is not set, a GPU computes large microbatches, and all of its packed batch at once if its
    layers need no padding, as far as an estimate of the memory allows it.

    Args:
        run: The settings.
        device: The device of each process.
        cost: The cost of the model.
        num_processes: The number of processes.
        packed: Whether tokens are counted without padding.
        memory_bytes: The memory of a GPU; infinite if it is not known.
    """
    if run.batching.max_tokens is not None:
        return run.batching.max_tokens
    if device.type == "cpu":
        return DEFAULT_MAX_TOKENS
    wanted = _UNLIMITED if packed else max(DEFAULT_MAX_TOKENS, run.batching.batch_tokens)
    kept: float = cost.state_bytes + cost.average_bytes
    if run.training.shard and num_processes > 1:
        # Microbatches add to full gradients, until the last one.
        kept = kept / num_processes + _GRADIENT_BYTES * cost.num_parameters
    free = USABLE_SHARE * memory_bytes - kept
    return int(max(_MIN_TOKENS, min(wanted, free / cost.token_bytes)))


def largest_microbatches(batcher: Batcher, microbatches: Sequence[Integers]) -> list[Integers]:
    """Return the microbatch of most tokens, and one of this size of the longest pairs of an epoch.

    Layers that are compiled for the first need not be compiled again for the second.
    """
    most = max(microbatches, key=lambda each: int(np.add(*batcher.lengths(each)).sum()))
    sample = batcher.sample()
    lengths = np.maximum(*batcher.lengths(sample))
    longest = sample[np.argsort(-lengths, kind="stable")]
    num_pairs = max(1, batcher.microbatch_tokens(most) // int(lengths.max()))
    return [most, longest[:num_pairs]]


def _derive_seed(*numbers: int) -> int:
    """Return a seed in which every bit depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
