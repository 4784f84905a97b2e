"""Fully sharded training (FSDP): each process holds a shard of the weights and their gradients."""

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from typing_extensions import override

from tfm.distributed.group import Group
from tfm.training.gradients import Gradients


class ShardedGradients(Gradients):
    """Gradients of processes that each hold a shard of weights, gradients and optimizer state.

    Weights are gathered layer by layer when they are needed.
    """

    can_recover = False  # the other ranks need this rank's weights in each microbatch

    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__(module)
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, (group.world.size,))
        stacks = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
        for layer in [*(layer for stack in stacks for layer in stack), module]:
            sharded: FSDPModule = fully_shard(layer, mesh=mesh)
            # Sum the gradients: the loss is already divided by the tokens of all ranks.
            sharded.set_force_sum_reduction_for_comms(True)
            sharded.set_gradient_divide_factor(1.0)
        self._group = group
        self._sharded = sharded

    @override
    @contextlib.contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        self._sharded.set_requires_gradient_sync(is_last)
        with self._group.detect_lost_peers():
            yield
