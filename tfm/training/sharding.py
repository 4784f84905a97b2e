"""Gradients, weights and optimiser state of which each process has a share (FSDP)."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tfm.data.batching import Batch
from tfm.distributed.group import Group
from tfm.training.gradients import LossFunction


class ShardedGradients:
    """Each process has a share of all weights, gradients and optimiser state (FSDP).

    Args:
        module: Computes the loss of a part; its layers are gathered one by one as they are needed.
        group: The processes.
    """

    can_give_up = False  # the others need its weights

    def __init__(self, module: nn.Module, group: Group) -> None:
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, (group.world.size,))
        for stack in list(module.modules()):
            if isinstance(stack, nn.ModuleList):
                for layer in stack:
                    fully_shard(layer, mesh=mesh)
        self._group = group
        self._sharded: FSDPModule = fully_shard(module, mesh=mesh)
        self.divisor = group.world.size  # gloo can only sum, and FSDP divides afterwards
        self.loss: LossFunction = module

    @contextlib.contextmanager
    def sharing(self, *, is_last: bool) -> Iterator[None]:
        """See the protocol; raises LostPeersError if the others are gone."""
        self._sharded.set_requires_gradient_sync(is_last)
        with self._group.reaching_peers():
            yield

    def release(self) -> None:
        """There is no going on."""

    def reset(self, example: Batch) -> None:
        """There is no going on."""


def shard_like(tensor: Tensor, parameter: DTensor) -> DTensor:
    """Return a full tensor laid out over the processes as a parameter of the same shape is."""
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
