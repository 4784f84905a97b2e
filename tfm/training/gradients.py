"""Gradients of microbatches, summed over the processes that compute them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from tfm.dataset.batching import Batch
from tfm.machine.group import Group
from tfm.model.recurrent import Recurrent

# DDP orders its gradient buckets after the first step, when the second one starts.
_STEPS_TO_BUILD_BUCKETS = 2


class Gradients:
    """The gradients of a single process; subclasses sum gradients over several processes.

    Attributes:
        loss: Maps a microbatch to its smoothed loss and negative log-likelihood, each summed over
            its target tokens.
        always_waits: Whether each microbatch, not only the last, waits for the other ranks.
    """

    always_waits = False

    def __init__(self, module: nn.Module) -> None:
        self.loss: Callable[[Batch], tuple[Tensor, Tensor]] = module  # or its DDP wrapper

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for `loss` and backward pass of one microbatch.

        In the last microbatch, ranks sum their gradients: LostPeersError if a rank has left.
        """
        return nullcontext()

    def complete(self) -> None:
        """Take part in the remaining sums of a last microbatch that has run out of memory.

        The gradients must be built again. With sharded weights, that is impossible.
        """


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

    All processes start with the weights of rank 0.
    """

    def __init__(self, module: nn.Module, group: Group, example: Batch) -> None:
        self._group = group
        with group.detect_lost_peers():
            # Not static_graph: it gains nothing here, and with no_sync it fails, or does not sum
            # gradients, unless steps without no_sync come first.
            self._ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
        # Position tables differ in size: they grow with the sentences that a rank has seen.
        # torch 2.13 deprecates the argument of the constructor.
        self._ddp.broadcast_buffers = False
        self._sums = _BucketSums()
        self._ddp.register_comm_hook(self._sums, _BucketSums.add)
        super().__init__(self._ddp)
        # All ranks must take part in building the buckets, but a rank that stops would not. In
        # evaluation mode, nothing is compiled for the size of the example, but cuDNN's recurrent
        # layers and hard attention have no gradient.
        module.eval()
        for part in module.modules():
            if isinstance(part, Recurrent):
                part.train()
        with group.detect_lost_peers():
            for _ in range(_STEPS_TO_BUILD_BUCKETS):
                self._sums.sizes, self._sums.num_done = {}, 0
                loss, _ = self.loss(example)
                (loss * 0.0).backward()  # type: ignore[no-untyped-call]
        module.train().zero_grad()

    @override
    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        self._sums.num_done = 0
        return self._group.detect_lost_peers() if is_last else self._ddp.no_sync()

    @override
    def complete(self) -> None:
        device = next(self._ddp.parameters()).device
        with self._group.detect_lost_peers():
            for index in range(self._sums.num_done, len(self._sums.sizes)):
                dist.all_reduce(torch.zeros(self._sums.sizes[index], device=device))


class _BucketSums:
    """Sums buckets of gradients over ranks: in the same order on all of them.

    It does not refer to DDP: the C++ code of DDP keeps it.

    Attributes:
        sizes: The number of fp32 elements of each bucket, by index.
        num_done: How many were summed, or are being summed, in this backward pass.
    """

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.num_done = 0

    def add(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # not in its stub
    ) -> torch.futures.Future[Tensor]:
        """Start to sum a bucket: the loss is already divided by the tokens of all ranks."""
        self.sizes[bucket.index()] = bucket.buffer().numel()
        self.num_done += 1
        summed: torch.futures.Future[list[Tensor]] = dist.all_reduce(
            bucket.buffer(), async_op=True
        ).get_future()
        return summed.then(lambda done: done.value()[0])


class ShardedGradients(Gradients):
    """Gradients of processes that each hold a shard of weights, gradients and optimizer state.

    Weights are gathered layer by layer when they are needed (FSDP).
    """

    always_waits = True  # for their weights

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
    return cast("Tensor", norm.full_tensor() if is_sharded(norm) else norm)


def full_tensor(tensor: Any, *, keep: bool = True) -> Tensor:
    """Return the full tensor, of any shape, of a shard; all processes must call it together.

    It is on the CPU, because the device may have no room for it; without `keep`, its shape is [0].
    """
    tensor = tensor.detach()
    if not is_sharded(tensor):
        return cast("Tensor", tensor)
    full: Tensor = tensor.full_tensor()
    return full.cpu() if keep else full.new_empty(0)


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor, of any shape, that this process holds: all if not sharded."""
    tensor = tensor.detach()
    return cast("Tensor", tensor.to_local() if is_sharded(tensor) else tensor)


def shard_like(tensor: Tensor, parameter: Any) -> Tensor:
    """Return a full tensor, of any shape, on a parameter's device and sharded like it."""
    tensor = tensor.to(parameter.device)
    if not is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


def is_sharded(tensor: Any) -> bool:
    """Return whether each process holds only a part of a tensor."""
    return hasattr(tensor, "full_tensor")  # a DTensor; importing its class takes long
