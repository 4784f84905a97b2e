"""Weights, gradients and optimizer state of which each process holds a shard (FSDP)."""

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from tfm.distributed.group import Group
from tfm.training.gradients import Gradients


class ShardedGradients(Gradients):
    """Each process holds a shard of all weights, gradients and optimizer state (FSDP).

    Args:
        module: Computes the loss of a microbatch; its layers are gathered one by one as they are
            needed.
        group: The processes.
    """

    can_recover = False  # the others need its weights

    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__(module)
        device = next(module.parameters()).device.type
        mesh = init_device_mesh(device, (group.world.size,))
        stacks = [each for each in module.modules() if isinstance(each, nn.ModuleList)]
        for layer in [*(layer for stack in stacks for layer in stack), module]:
            sharded: FSDPModule = fully_shard(layer, mesh=mesh)
            # Gradients are summed: the loss is already divided by all tokens.
            sharded.set_force_sum_reduction_for_comms(True)
            sharded.set_gradient_divide_factor(1.0)
        self._group = group
        self._sharded = sharded

    @contextlib.contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        """Return a context to compute a microbatch in; LostPeersError if the others are gone."""
        self._sharded.set_requires_gradient_sync(is_last)
        with self._group.detect_lost_peers():
            yield
