"""The rank of this process and the world size, as its launcher sets them."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from tfm.errors import UsageError

Launcher = Literal["torchrun", "Slurm"]

_VARIABLES: dict[Launcher, tuple[str, ...]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Slurm": (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID",
    ),
}
_TASKS_PER_NODE = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


@dataclass(frozen=True, kw_only=True)
class World:
    """The place of this process among the processes of a run.

    Attributes:
        rank: Rank of this process; only rank 0 writes files and prints.
        size: Number of processes.
        local_rank: Rank on this node; also the index of the process's GPU.
        local_size: Number of processes on this node.
        launcher: None for a process without a launcher. tfm's own launcher counts as torchrun.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: Launcher | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @classmethod
    def from_environment(cls) -> "World":
        """Return the world that torchrun or Slurm describes; a single process without either.

        The variables count only if MASTER_ADDR is set, too: Slurm also sets its own for the batch
        script itself, which is a single process. Only training uses them: everything else calls
        `current_world`, which does not fail.
        """
        launcher = _find_launcher()
        if launcher is None:
            _refuse_incomplete_variables()
            return cls()
        values = [os.environ[name] for name in _VARIABLES[launcher]]
        shown = ", ".join(map("=".join, zip(_VARIABLES[launcher], values, strict=True)))
        if "MASTER_PORT" not in os.environ:
            raise UsageError(f"{launcher} sets {shown}, but no port to meet at: set MASTER_PORT")
        try:
            if launcher == "Slurm":
                values[3:] = [_parse_tasks_per_node(values[3])[int(values[4])]]
            rank, size, local_rank, local_size = map(int, values)
        except (ValueError, IndexError):
            raise UsageError(f"{launcher} sets {shown}: these must be numbers") from None
        if not (0 <= local_rank < local_size <= size and local_rank <= rank < size):
            raise UsageError(f"{launcher} sets {shown}, which contradict each other")
        return cls(
            rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=launcher
        )


def current_world() -> World:
    """Return the world of this process; a single process if its variables describe no world.

    Commands that do not train ignore variables that a shell has inherited.
    """
    try:
        return World.from_environment()
    except UsageError:
        return World()


def _find_launcher() -> Launcher | None:
    """Return the launcher that has set all of its variables; None if there is none."""
    if "MASTER_ADDR" in os.environ:
        for launcher, names in _VARIABLES.items():
            if all(name in os.environ for name in names):
                return launcher
    return None


def _refuse_incomplete_variables() -> None:
    """Raise UsageError if some variables of torchrun are set beside MASTER_ADDR, but not all."""
    names = ("MASTER_ADDR", *_VARIABLES["torchrun"])
    found = [name for name in names if name in os.environ]
    if "MASTER_ADDR" in found and len(found) > 1:
        missing = [name for name in names if name not in found]
        raise UsageError(
            f"{', '.join(found)} are set, but not {', '.join(missing)}: start this command with "
            "torchrun, which sets all of them, or give --gpus N or --processes N, which need none"
        )


def _parse_tasks_per_node(counts: str) -> list[str]:
    """Return the number of tasks of each node from Slurm's notation, such as "8(x2),4"."""
    tasks: list[str] = []
    for count in counts.split(","):
        match = _TASKS_PER_NODE.fullmatch(count)
        if match is None:
            raise ValueError(count)
        tasks += [match[1]] * int(match[2] or 1)
    return tasks
