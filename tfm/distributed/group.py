"""The processes of a run, joined: how they sum, agree and hear of each other."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from tfm.distributed.interruption import InterruptedRunError
from tfm.errors import LostPeersError, UsageError
from tfm.world import World


class Group:
    """The processes of a run; one that is alone agrees with itself.

    What is told to the others is plain JSON: nothing that comes over the network is unpickled.

    Args:
        world: Who this process is among them.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.world.size == 1

    @property
    def store(self) -> Store | None:
        """Where the processes meet; None if there is no other."""
        return None if self.is_alone else dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public name

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; the same bits on each.

        Args:
            values: On the CPU, or on the device of the run.
        """
        if not self.is_alone:
            with self.reaching_peers():
                dist.all_reduce(values)
        return values

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all processes."""
        if self.is_alone:
            return list(values)
        tensor = torch.tensor(values)
        with self.reaching_peers():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """What each process says, by rank.

        Args:
            value: Anything that JSON can say.
        """
        if self.is_alone:
            return [value]
        message = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self.reaching_peers():
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world.size)]
            dist.all_gather(lengths, torch.tensor([len(message)]))
            padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
            padded[: len(message)] = message
            messages = [torch.empty_like(padded) for _ in lengths]
            dist.all_gather(messages, padded)
        pairs = zip(messages, lengths, strict=True)
        return [json.loads(bytes(each[: int(n)].numpy())) for each, n in pairs]

    def check_equal(self, facts: dict[str, Any]) -> None:
        """See to it that all processes start from the same facts.

        Args:
            facts: What must be the same everywhere, by the name that a user knows it by.

        Raises:
            UsageError: A process has other facts than the first.
        """
        first, *others = self.gather(facts)
        for rank, theirs in enumerate(others, 1):
            if different := [name for name in first if first[name] != theirs.get(name)]:
                raise UsageError(
                    f"rank {rank} has other {' and '.join(different)} than rank 0: give all "
                    "machines the same command, files and version of tfm"
                )

    @contextlib.contextmanager
    def reaching_peers(self) -> Iterator[None]:
        """Tell a process that is gone from all other errors.

        Raises:
            LostPeersError: The others cannot be reached any more.
        """
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise LostPeersError(
                f"rank {self.world.rank} lost the other processes ({reason})"
            ) from error


@contextlib.contextmanager
def joined(world: World, device: torch.device, *, timeout: timedelta) -> Iterator[Group]:
    """Join the processes of a run for a while.

    Args:
        world: Who this process is among them.
        device: Where it computes.
        timeout: How long to wait for the others before they count as lost.

    Raises:
        LostPeersError: They cannot be reached.
    """
    group = Group(world)
    if group.is_alone:
        yield group
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with group.reaching_peers():
        dist.init_process_group(
            backend, rank=world.rank, world_size=world.size, timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )  # fmt: skip
    try:
        yield group
    except InterruptedRunError:  # which all have come to together
        dist.destroy_process_group()
        raise
    # After any other error this could wait for ever, for processes that are stuck in a collective.
    dist.destroy_process_group()
