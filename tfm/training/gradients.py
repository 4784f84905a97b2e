"""Gradients of microbatches, summed over the processes that compute them."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tfm.data.batching import Batch
from tfm.distributed.group import Group

# Of DDP, which settles how it buckets gradients in its first steps.
_STEPS_TO_SETTLE = 3


class Gradients:
    """The gradients of a process alone, and the interface of those that several processes share.

    Args:
        module: Maps a microbatch to its smoothed loss and negative log-likelihood, each summed over
            its target tokens.

    Attributes:
        loss: The module, or what wraps it to share its gradients.
        can_recover: Whether a process that runs out of memory can go on with the others.
    """

    can_recover = True

    def __init__(self, module: nn.Module) -> None:
        self.loss: Callable[[Batch], tuple[Tensor, Tensor]] = module

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context to compute a microbatch in; in the last, ranks sum their gradients."""
        return nullcontext()

    def release_peers(self) -> None:
        """After a failure in the last microbatch, join the sums that the other ranks wait for."""

    def reset(self) -> None:
        """Start anew after such a failure of any rank; to be called by all ranks."""


def gradients_of(module: nn.Module, group: Group, example: Batch, *, shard: bool) -> Gradients:
    """Prepare a module for the processes that compute its gradients together.

    Args:
        module: Computes the loss of a microbatch.
        group: The processes.
        example: A small batch.
        shard: Whether each process holds only a shard of the weights (FSDP).
    """
    if group.is_alone:
        return Gradients(module)
    if shard:
        # FSDP takes seconds to load: only those who use it wait for that.
        from tfm.training.sharding import ShardedGradients

        return ShardedGradients(module, group)
    return ReplicatedGradients(module, group, example)


class ReplicatedGradients(Gradients):
    """Each process has all weights; gradients are summed during the last backward pass (DDP).

    A process that runs out of memory in its last microbatch gives zeros to the sums that it still
    owes the others. DDP cannot be interrupted, so it is replaced then.

    Args:
        module: Computes the loss of a microbatch; the first process' weights go to all.
        group: The processes.
        example: A small batch.
    """

    def __init__(self, module: nn.Module, group: Group, example: Batch) -> None:
        self._module = module
        self._group = group
        self._example = example
        self._bucket_sizes: dict[int, int] = {}
        self._num_summed = 0
        self.reset()

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context to compute a microbatch in; LostPeersError if the others are gone."""
        self._num_summed = 0
        return self._group.detect_lost_peers() if is_last else self._replica.no_sync()

    def release_peers(self) -> None:
        """Join the sums that this process still owes; LostPeersError if the others are gone."""
        device = next(self._module.parameters()).device
        with self._group.detect_lost_peers():
            for index in range(self._num_summed, len(self._bucket_sizes)):
                dist.all_reduce(torch.zeros(self._bucket_sizes[index], device=device))

    def reset(self) -> None:
        """Wrap the module in a fresh DDP, and run it until its buckets are settled."""
        self._replica: Any = None
        self.loss = self._module  # the last reference to DDP and its hooks
        gc.collect()
        self._module.zero_grad()
        with self._group.detect_lost_peers():
            self._replica = DistributedDataParallel(
                self._module,
                static_graph=True,
                gradient_as_bucket_view=True,
                init_sync=not self._bucket_sizes,  # the first time
            )
            # Tables of positions grow with the sentences that a process has seen.
            self._replica.broadcast_buffers = False
            self._replica.register_comm_hook(None, self._sum_bucket)
            self.loss = self._replica
            for _ in range(_STEPS_TO_SETTLE):
                loss, _ = self.loss(self._example)
                (loss * 0).backward()  # type: ignore[no-untyped-call]
        self._module.zero_grad()

    def _sum_bucket(
        self,
        _: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # not in its stub
    ) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        self._bucket_sizes[bucket.index()] = buffer.numel()
        self._num_summed += 1
        future: torch.futures.Future[list[Tensor]] = dist.all_reduce(
            buffer, async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0])


def gradient_norm(parameters: Sequence[nn.Parameter]) -> float:
    """Return the norm of the whole gradient, sharded or not."""
    norm: Any = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return float(norm.full_tensor() if _is_sharded(norm) else norm)


def scale_gradient(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply the whole gradient by a number."""
    if factor != 1.0:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def clip_gradient(parameters: Sequence[nn.Parameter], norm: float, *, limit: float) -> None:
    """Scale a gradient of some norm down to a limit; 0 never clips."""
    if limit and norm > limit:
        scale_gradient(parameters, limit / norm)


def full_tensor(tensor: Any, *, keep: bool = True) -> Tensor:
    """Return the full tensor of a shard; all processes must call it together.

    Args:
        tensor: Full or sharded.
        keep: Whether this process needs it. What was sharded comes in memory of the CPU, because
            the device may have no room for it; or empty.
    """
    tensor = tensor.detach()
    if not _is_sharded(tensor):
        return cast("Tensor", tensor)
    full: Tensor = tensor.full_tensor()
    return full.cpu() if keep else full.new_empty(0)


def shard_like(tensor: Tensor, parameter: Any) -> Tensor:
    """Return a full tensor on the device of a parameter of its shape, and sharded as it is."""
    tensor = tensor.to(parameter.device)
    if not _is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


def _is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, without loading that class."""
    return hasattr(tensor, "full_tensor")
