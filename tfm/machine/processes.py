"""The number of processes and nodes that the flags of a command ask for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.config.values import shown
from tfm.errors import UsageError
from tfm.machine.cpu import MAX_PER_CORE, num_cores
from tfm.machine.world import World

_ENDPOINT = re.compile(r"(?:\[[\w.:]+\]|[\w.-]+):([0-9]{1,5})")
_MAX_PORT = 65_535
_MAX_NODES = 100_000
_MAX_RESTARTS = 1_000
_GPUS = re.compile(r"auto|0*[1-9][0-9]{0,3}")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The processes and nodes of a run."""

    local_size: int | None = 1  # processes on this node; None for one per GPU
    device: Literal["cpu", "cuda"] | None = None  # None leaves it to the settings
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""  # HOST:PORT of node 0, where several nodes meet
    restarts: int = 0  # at most, of all processes after one has failed

    @classmethod
    def from_flags(
        cls,
        *,
        gpus: str | None = None,
        processes: int | None = None,
        nodes: int | None = None,
        node_rank: int | None = None,
        rendezvous: str | None = None,
        restarts: int | None = None,
        device: str | None = None,
    ) -> "Placement":
        """Return the placement that the flags of a command ask for."""
        device_problems = _device_problems(gpus, processes, device)
        problems = [
            *device_problems,
            *_node_problems(nodes, node_rank, rendezvous),
            *_restart_problems(restarts),
        ]
        if problems:
            raise UsageError("; ".join(problems))
        return cls(
            local_size=None if gpus == "auto" else int(gpus or processes or 1),
            device="cuda" if gpus is not None else "cpu" if processes is not None else None,
            nodes=nodes or 1,
            node_rank=node_rank or 0,
            rendezvous=rendezvous or "",
            restarts=restarts or 0,
        )

    @property
    def needs_launcher(self) -> bool:
        """Whether this command has to start other processes, instead of training by itself."""
        if self.nodes > 1 or self.restarts:
            return True
        return self.local_size != 1 and self.num_local_processes() > 1

    def num_local_processes(self) -> int:
        """Return the number of processes for this node."""
        if self.device != "cuda":
            return self.local_size or 1
        import torch

        num_gpus = torch.cuda.device_count()
        if not num_gpus:
            raise UsageError(
                "--gpus: torch sees no GPU on this node; use --processes N for its CPU"
            )
        num_processes = self.local_size or num_gpus
        if num_processes > num_gpus:
            raise UsageError(f"--gpus is {num_processes}, but torch sees {num_gpus} on this node")
        return num_processes

    def check(self, world: World) -> None:
        """Check that a launcher has started the processes that the flags ask for, if any."""
        local_size = self.local_size or world.local_size
        expected = (local_size, local_size * self.nodes)
        if self != Placement() and (world.local_size, world.size) != expected:
            raise UsageError(
                f"{world.launcher} has started {world.local_size} processes on this node and "
                f"{world.size} in all, but the flags ask for {local_size} on each of {self.nodes} "
                "nodes: set the number of processes in either the launcher or tfm's flags, not both"
            )


def _device_problems(gpus: str | None, processes: int | None, device: str | None) -> Iterator[str]:
    if gpus is not None and not _GPUS.fullmatch(gpus):
        yield f"--gpus is {gpus}, but must be auto or from 1 to 9999"
    max_processes = MAX_PER_CORE * num_cores()
    if processes is not None and not 1 <= processes <= max_processes:
        yield (
            f"--processes is {shown(processes)}, but must be from 1 to {max_processes} on this "
            "machine"
        )
    if gpus is not None and processes is not None:
        yield "--gpus and --processes exclude each other: give one"
    elif gpus is not None and device in ("cpu", "mps"):
        yield f"--gpus contradicts --device {device}: leave one out"
    elif processes is not None and device == "mps":
        yield "--processes N uses the CPU: leave out --device mps"
    elif processes is not None and device == "cuda":
        yield "--processes N uses the CPU: with --device cuda, give --gpus N instead"


def _restart_problems(restarts: int | None) -> Iterator[str]:
    if restarts is not None and not 0 <= restarts <= _MAX_RESTARTS:
        yield f"--restarts is {shown(restarts)}, but must be from 0 to {_MAX_RESTARTS}"


def _node_problems(
    nodes: int | None, node_rank: int | None, rendezvous: str | None
) -> Iterator[str]:
    if nodes is None:
        if node_rank is not None or rendezvous is not None:
            yield "--node-rank and --rendezvous are for several nodes: add --nodes"
        return
    if not 1 <= nodes <= _MAX_NODES:
        yield f"--nodes is {shown(nodes)}, but must be from 1 to {_MAX_NODES}"
    elif nodes > 1 and (node_rank is None or rendezvous is None):
        yield (
            f"--nodes {nodes} needs on each node its own --node-rank and the same --rendezvous "
            "HOST:PORT, where HOST is node 0"
        )
    elif not 0 <= (node_rank or 0) < nodes:
        yield f"--node-rank is {shown(node_rank)}, but must be from 0 to {nodes - 1}"
    match = _ENDPOINT.fullmatch(rendezvous or "")
    if rendezvous is not None and not (match and 0 < int(match[1]) <= _MAX_PORT):
        yield f"--rendezvous is {rendezvous}, but must be HOST:PORT, such as 10.0.0.1:29500"
