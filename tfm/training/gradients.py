"""Gradients of microbatches, summed over the processes that compute them."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from tfm.data.batching import Batch
from tfm.distributed.group import Group

# DDP rebuilds its gradient buckets during its first steps.
_STEPS_TO_BUILD_BUCKETS = 3


class Gradients:
    """The gradients of a single process; subclasses sum those of several processes.

    Args:
        module: Maps a microbatch to its smoothed loss and negative log-likelihood, each summed over
            its target tokens.

    Attributes:
        can_recover: Whether a step can be repeated after a process has run out of memory.
    """

    can_recover = True

    def __init__(self, module: nn.Module) -> None:
        self._loss: Callable[[Batch], tuple[Tensor, Tensor]] = module  # or its DDP wrapper

    def add(
        self, batch: Batch, weight: float | Tensor, *, before_backward: Callable[[], None]
    ) -> Tensor:
        """Add the gradient of a microbatch's weighted loss, within `accumulate`.

        Return the [2] sums of its loss and negative log-likelihood, valid until the next call.
        """
        loss, nll = self._loss(batch)
        before_backward()
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), nll])

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for one microbatch; in the last one, ranks sum their gradients.

        The context raises LostPeersError if other ranks cannot be reached.
        """
        return nullcontext()

    def release_peers(self) -> None:
        """Unblock the all-reduces of the other ranks after a failure in the last microbatch."""

    def reset(self) -> None:
        """Start anew after such a failure; all ranks must call this together."""


def build_gradients(module: nn.Module, group: Group, example: Batch, *, shard: bool) -> Gradients:
    """Prepare a module for processes that sum its gradients, with FSDP if `shard`, else with DDP.

    DDP is initialized with a small example batch.
    """
    if group.is_alone:
        return Gradients(module)
    if shard:
        return ShardedGradients(module, group)
    return ReplicatedGradients(module, group, example)


class ReplicatedGradients(Gradients):
    """Gradients of processes that each hold all weights; summed during the last backward (DDP).

    A rank that runs out of memory in the last microbatch adds zeros to the all-reduces that the
    other ranks wait for. DDP cannot be used after an interrupted step, so it is built anew then.
    All processes start with the weights of rank 0.
    """

    def __init__(self, module: nn.Module, group: Group, example: Batch) -> None:
        self._module = module
        self._group = group
        self._example = example
        self._bucket_sizes: dict[int, int] = {}
        self._num_reduced_buckets = 0
        self.reset()

    @override
    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        self._num_reduced_buckets = 0
        return self._group.detect_lost_peers() if is_last else self._ddp.no_sync()

    @override
    def release_peers(self) -> None:
        like = next(self._module.parameters())
        with self._group.detect_lost_peers():
            for index in range(self._num_reduced_buckets, len(self._bucket_sizes)):
                dist.all_reduce(like.new_zeros(self._bucket_sizes[index]))

    @override
    def reset(self) -> None:
        self._ddp: Any = None
        self._loss = self._module  # drops the last reference to the old DDP and its hooks
        gc.collect()
        self._module.zero_grad()
        with self._group.detect_lost_peers():
            self._ddp = DistributedDataParallel(
                self._module,
                static_graph=True,
                gradient_as_bucket_view=True,
                init_sync=not self._bucket_sizes,  # only the first time
            )
            # Position tables differ in size: they grow with the sentences that a rank has seen.
            self._ddp.broadcast_buffers = False
            self._ddp.register_comm_hook(None, self._all_reduce_bucket)
            self._loss = self._ddp
            for _ in range(_STEPS_TO_BUILD_BUCKETS):
                loss, _ = self._loss(self._example)
                (loss * 0).backward()  # type: ignore[no-untyped-call]
        self._module.zero_grad()

    def _all_reduce_bucket(
        self,
        _: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # not in its stub
    ) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        self._bucket_sizes[bucket.index()] = buffer.numel()
        self._num_reduced_buckets += 1
        future: torch.futures.Future[list[Tensor]] = dist.all_reduce(
            buffer, async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0])


class ShardedGradients(Gradients):
    """Gradients of processes that each hold a shard of weights, gradients and optimizer state.

    Weights are gathered layer by layer when they are needed (FSDP).
    """

    can_recover = False  # the other ranks need this rank's weights in each microbatch

    def __init__(self, module: nn.Module, group: Group) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # takes seconds to import

        super().__init__(module)
        self._group = group
        mesh = init_device_mesh(next(module.parameters()).device.type, (group.world.size,))
        stacks = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
        for layer in [*(layer for stack in stacks for layer in stack), module]:
            self._sharded = fully_shard(layer, mesh=mesh)
            # Sum the gradients: the loss is already divided by the tokens of all ranks.
            self._sharded.set_force_sum_reduction_for_comms(True)
            self._sharded.set_gradient_divide_factor(1.0)

    @override
    @contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        self._sharded.set_requires_gradient_sync(is_last)
        with self._group.detect_lost_peers():
            yield


def gradient_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the norm of all gradients together, sharded or not: a scalar on the device."""
    norm: Any = nn.utils.get_total_norm(list(gradients))
    return cast("Tensor", norm.full_tensor() if _is_sharded(norm) else norm)


def full_tensor(tensor: Any, *, keep: bool = True) -> Tensor:
    """Return the full tensor, of any shape, of a shard; all processes must call it together.

    It is on the CPU, because the device may have no room for it; without `keep`, its shape is [0].
    """
    tensor = tensor.detach()
    if not _is_sharded(tensor):
        return cast("Tensor", tensor)
    full: Tensor = tensor.full_tensor()
    return full.cpu() if keep else full.new_empty(0)


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor, of any shape, that this process holds: all if not sharded."""
    tensor = tensor.detach()
    return cast("Tensor", tensor.to_local() if _is_sharded(tensor) else tensor)


def shard_like(tensor: Tensor, parameter: Any) -> Tensor:
    """Return a full tensor, of any shape, on a parameter's device and sharded like it."""
    tensor = tensor.to(parameter.device)
    if not _is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


def _is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; importing its class takes long
