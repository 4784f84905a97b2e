"""The gradient of a batch whose parts are computed by several processes."""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tfm.data.batching import Batch
from tfm.distributed.group import Group

# Of DDP, which settles how it buckets gradients in its first steps.
_STEPS_TO_SETTLE = 3

LossFunction = Callable[[Batch], tuple[Tensor, Tensor]]


class Gradients(Protocol):
    """How the gradients of parts come together.

    Attributes:
        loss: Maps a part to its smoothed loss and negative log-likelihood, summed over its tokens.
        can_give_up: Whether a process may leave out parts that it cannot compute.
        divisor: What the sum over processes is divided by.
    """

    loss: LossFunction
    can_give_up: bool
    divisor: int

    def sharing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Compute a part, forward and backward; in the last, all share their gradients."""

    def release(self) -> None:
        """Let the others come to the end of their last part, after this process failed in its."""

    def reset(self, example: Batch) -> None:
        """Start anew after such a failure, on all processes at once."""


def gradients_of(loss: nn.Module, group: Group, example: Batch, *, shard: bool) -> Gradients:
    """Prepare a module for the processes that compute its gradient together.

    Args:
        loss: Computes the loss of a part.
        group: The processes.
        example: A small batch.
        shard: Give each process a share of the weights instead of all.
    """
    if group.is_alone:
        return LocalGradients(loss)
    if shard:
        # FSDP takes seconds to load, which only those wait for who use it.
        from tfm.training.sharding import ShardedGradients

        return ShardedGradients(loss, group)
    return ReplicatedGradients(loss, group, example)


class LocalGradients:
    """All parts are computed here."""

    can_give_up = True
    divisor = 1

    def __init__(self, module: nn.Module) -> None:
        self.loss: LossFunction = module

    def sharing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Nothing to share."""
        return nullcontext()

    def release(self) -> None:
        """Nobody waits."""

    def reset(self, example: Batch) -> None:
        """Nothing is left over."""


class ReplicatedGradients:
    """Each process has all weights; gradients are summed while the last backward pass goes on.

    A process that runs out of memory in its last part still owes the others the sums that it has
    not come to: `release` gives zeros to them. DDP cannot be interrupted, so it is replaced then.

    Args:
        module: Computes the loss of a part; the first process' weights go to all.
        group: The processes.
        example: A small batch.
    """

    can_give_up = True
    divisor = 1

    def __init__(self, module: nn.Module, group: Group, example: Batch) -> None:
        self._module = module
        self._group = group
        self._bucket_sizes: dict[int, int] = {}
        self._num_summed = 0
        self.reset(example)

    def sharing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """See the protocol; raises LostPeersError if the others are gone."""
        self._num_summed = 0
        return self._group.reaching_peers() if is_last else self._replicas.no_sync()

    def release(self) -> None:
        """See the protocol; raises LostPeersError if the others are gone."""
        device = next(self._module.parameters()).device
        with self._group.reaching_peers():
            for index in range(self._num_summed, len(self._bucket_sizes)):
                dist.all_reduce(torch.zeros(self._bucket_sizes[index], device=device))

    def reset(self, example: Batch) -> None:
        """See the protocol."""
        self._replicas: Any = None
        self.loss: LossFunction = self._module  # the last reference to DDP and its hooks
        gc.collect()
        self._module.zero_grad()
        with self._group.reaching_peers():
            self._replicas = DistributedDataParallel(
                self._module,
                static_graph=True,
                gradient_as_bucket_view=True,
                init_sync=not self._bucket_sizes,  # the first time
            )
            # Tables of positions grow with the sentences that a process has seen.
            self._replicas.broadcast_buffers = False
            self._replicas.register_comm_hook(None, self._summed)
            self.loss = self._replicas
            for _ in range(_STEPS_TO_SETTLE):
                loss, _ = self.loss(example)
                (loss * 0).backward()  # type: ignore[no-untyped-call]
        self._module.zero_grad()

    def _summed(
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
    """The norm of the whole gradient, wherever its parts are."""
    norm: Any = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return float(norm.full_tensor() if _is_sharded(norm) else norm)


def scale_gradient(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply the whole gradient by a number."""
    if factor != 1.0:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def whole(tensor: Any, *, keep: bool = True) -> Tensor:
    """A tensor of which each process may have a share only; all must ask for it together.

    Args:
        tensor: Whole or shared.
        keep: Whether this process has a use for it. One that was shared comes in memory of the CPU,
            as a device that had no room for all of them would not have it now; or empty.
    """
    tensor = tensor.detach()
    if not _is_sharded(tensor):
        return cast("Tensor", tensor)
    full: Tensor = tensor.full_tensor()
    return full.cpu() if keep else full.new_empty(0)


def like(tensor: Tensor, parameter: Any) -> Tensor:
    """A whole tensor laid out as a parameter of the same shape: on its device, shared as it is."""
    tensor = tensor.to(parameter.device)
    if not _is_sharded(parameter):
        return tensor
    from tfm.training.sharding import shard_like

    return shard_like(tensor, parameter)


def _is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, told without loading what that takes."""
    return hasattr(tensor, "full_tensor")
