"""Collectives over the processes of a run, on top of torch.distributed."""

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from tfm.errors import InterruptedRunError, LostPeersError, UsageError
from tfm.machine.world import World, torchrun_restarts

_NUM_RECORDED = "2000"  # collectives that torch's flight recorder keeps

# Process groups, until Python exits. If DDP's C++ code held the last reference, it would wait for
# gloo's threads while it holds the GIL, and they may wait for the GIL to free a tensor.
_process_groups: list[Any] = []


class Group:
    """The processes of a run; the collectives of a single process return its own values.

    Objects are exchanged as JSON: nothing that comes over the network is unpickled.

    Attributes:
        world: Their number, and the rank of this process.
        store: Their key-value store; None for a single process.
        folder: A temporary folder that the processes of this machine share; None if there are no
            others.
        heartbeat: Tells the watchdog of this process the name of the phase of work that starts, and
            with waits=True that it waits for other processes; does nothing by default.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.heartbeat: Callable[..., None] = lambda phase, waits=False: None
        self.store: Store | None = None
        self.folder: Path | None = None

    @property
    def is_alone(self) -> bool:
        """Whether this is the only process."""
        return self.world.size == 1

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor of any shape over all processes, in place; all get the same bits."""
        if not self.is_alone:
            with self.detect_lost_peers():
                dist.all_reduce(values)
        return values

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the maximum of each value over all processes."""
        if self.is_alone:
            return list(values)
        tensor = torch.tensor(values)
        with self.detect_lost_peers():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank; any JSON values."""
        if self.is_alone:
            return [value]
        message = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with self.detect_lost_peers():
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world.size)]
            dist.all_gather(lengths, torch.tensor([len(message)]))
            padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
            padded[: len(message)] = message
            messages = [torch.empty_like(padded) for _ in lengths]
            dist.all_gather(messages, padded)
        pairs = zip(messages, lengths, strict=True)
        return [json.loads(bytes(text[: int(length)].numpy())) for text, length in pairs]

    def check_equal(self, facts: dict[str, Any]) -> None:
        """Check that all processes have the same facts, named in the user's terms."""
        expected, *others = self.gather(facts)
        for rank, found in enumerate(others, 1):
            if different := [name for name in expected if expected[name] != found.get(name)]:
                raise UsageError(
                    f"rank {rank} has other {' and '.join(different)} than rank 0: give all "
                    "nodes the same command, files and version of tfm"
                )

    @contextlib.contextmanager
    def detect_lost_peers(self) -> Iterator[None]:
        """Turn the errors of collectives whose peers cannot be reached into LostPeersError."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise LostPeersError(
                f"rank {self.world.rank} lost the connection to the other processes ({reason})"
            ) from error


@contextlib.contextmanager
def joined(world: World, device: torch.device, *, timeout: timedelta) -> Iterator[Group]:
    """Join the process group of a run during the block; `timeout` limits each collective."""
    group = Group(world)
    if group.is_alone:
        yield group
        return
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _NUM_RECORDED)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with group.detect_lost_peers():
        store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
        store.set_timeout(timeout)
        # torchrun's store still has the addresses of the processes before a restart.
        # Machines may count differently; their restarts have a new store.
        attempt = 0 if world.spans_machines else torchrun_restarts()[0]
        group.store = PrefixStore(f"attempt {attempt}", store)
        dist.init_process_group(
            backend, store=group.store, rank=world.rank, world_size=world.size, timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )  # fmt: skip
        _process_groups.append(dist.group.WORLD)
    try:
        with _shared_folder(group) as group.folder:
            yield group
    except InterruptedRunError:  # all processes raise it together
        dist.destroy_process_group()
        raise
    # After any other error, a peer may be stuck in a collective: destroying would wait forever.
    dist.destroy_process_group()


@contextlib.contextmanager
def _shared_folder(group: Group) -> Iterator[Path | None]:
    """Create a temporary folder of this machine during the block; None for a single process."""
    name = f"tfm-{group.gather(secrets.token_hex(8))[0]}"
    if group.world.local_size == 1:
        yield None
        return
    folder = Path(tempfile.gettempdir()) / name
    is_first = group.world.local_rank == 0
    if is_first:
        folder.mkdir(mode=0o700, exist_ok=True)  # another node may be on this machine, too
    try:
        yield folder
    finally:
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)
