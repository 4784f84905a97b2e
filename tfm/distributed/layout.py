"""The processes that the flags of a command ask for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.errors import UsageError
from tfm.world import World

_ENDPOINT = re.compile(r"(?:\[([^\]]+)\]|([^:\s/\[\]]+)):([0-9]{1,5})")
_MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The processes that a run is asked to have.

    Attributes:
        local_size: How many on this machine; None is one for each of its GPUs.
        device: The kind of device that they are to have; None leaves that to the settings.
        nodes: How many machines.
        node_rank: Which of them this one is.
        host: Where the machines meet: a name or address of machine 0.
        port: The port there.
    """

    local_size: int | None = 1
    device: Literal["cpu", "cuda"] | None = None
    nodes: int = 1
    node_rank: int = 0
    host: str = ""
    port: int = 0

    @classmethod
    def from_flags(
        cls,
        *,
        gpus: str | None = None,
        processes: int | None = None,
        nodes: int | None = None,
        node_rank: int | None = None,
        rendezvous: str | None = None,
        device: str | None = None,
    ) -> "Layout":
        """What the flags of a command ask for.

        Raises:
            UsageError: They contradict each other or --device; all problems are named together.
        """
        problems = [
            *_problems_of_devices(gpus, processes, device),
            *_problems_of_machines(nodes, node_rank, rendezvous),
        ]
        if problems:
            raise UsageError("; ".join(problems))
        host, port = _endpoint(rendezvous or "") or ("", 0)
        if gpus is None:
            local_size: int | None = processes or 1
        else:
            local_size = None if gpus == "auto" else int(gpus)
        return cls(
            local_size=local_size,
            device="cuda" if gpus is not None else "cpu" if processes is not None else None,
            nodes=nodes or 1,
            node_rank=node_rank or 0,
            host=host,
            port=port,
        )

    def check(self, world: World) -> None:
        """See to it that a launcher has started what the flags ask for.

        Raises:
            UsageError: It has started other processes.
        """
        is_asked_for = self != Layout()
        local_size = self.local_size or world.local_size
        if is_asked_for and (world.local_size, world.size) != (local_size, local_size * self.nodes):
            raise UsageError(
                f"{world.launcher} has started {world.local_size} processes on this machine and "
                f"{world.size} in all, but the flags ask for {local_size} on each of {self.nodes}: "
                "let one of them say it, and leave the other's out"
            )


def _problems_of_devices(
    gpus: str | None, processes: int | None, device: str | None
) -> Iterator[str]:
    if gpus is not None and gpus != "auto" and not (gpus.isdecimal() and int(gpus)):
        yield f"--gpus is {gpus}, but must be auto or at least 1"
    if processes is not None and processes < 1:
        yield f"--processes is {processes}, but must be at least 1"
    if gpus is not None and processes is not None:
        yield "--gpus and --processes exclude each other: give one"
    elif gpus is not None and device == "cpu":
        yield "--gpus contradicts --device cpu: leave one out"
    elif processes is not None and device == "cuda":
        yield "--processes are of the CPU: with --device cuda, say --gpus"


def _problems_of_machines(
    nodes: int | None, node_rank: int | None, rendezvous: str | None
) -> Iterator[str]:
    if nodes is None:
        if node_rank is not None or rendezvous is not None:
            yield "--node-rank and --rendezvous are about several machines: add --nodes"
        return
    if nodes < 1:
        yield f"--nodes is {nodes}, but must be at least 1"
    elif nodes > 1 and (node_rank is None or rendezvous is None):
        yield (
            f"--nodes {nodes} needs, on each machine, its --node-rank and the same --rendezvous "
            "HOST:PORT, where HOST is machine 0"
        )
    elif not 0 <= (node_rank or 0) < nodes:
        yield f"--node-rank is {node_rank}, but must be from 0 to {nodes - 1}"
    if rendezvous is not None and _endpoint(rendezvous) is None:
        yield f"--rendezvous is {rendezvous}, but must be HOST:PORT, such as 10.0.0.1:29500"


def _endpoint(rendezvous: str) -> tuple[str, int] | None:
    """Host and port; None if that is not what it says."""
    found = _ENDPOINT.fullmatch(rendezvous)
    if found is None or not 0 < int(found[3]) <= _MAX_PORT:
        return None
    return found[1] or found[2], int(found[3])
