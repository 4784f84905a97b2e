"""Which of the processes of a run this one is."""

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
_TASKS_OF_NODES = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


@dataclass(frozen=True, kw_only=True)
class World:
    """One of the processes of a run, as its launcher describes it.

    Attributes:
        rank: Its number among all of them; 0 alone writes and speaks.
        size: How many there are.
        local_rank: Its number among those on this machine, and that of its GPU.
        local_size: How many are on this machine.
        launcher: Who started it; tfm's own launcher does as torchrun. None if nobody did.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: Launcher | None = None

    @property
    def is_first(self) -> bool:
        """Whether it is the one that writes and speaks."""
        return self.rank == 0

    @classmethod
    def from_environment(cls) -> "World":
        """What torchrun or Slurm says of this process; alone if nobody says anything.

        The variables count only beside MASTER_ADDR, which says where the processes meet: Slurm's
        are there in a batch script, too, for the script itself.

        Raises:
            UsageError: The variables do not make sense.
        """
        if "MASTER_ADDR" not in os.environ:
            return cls()
        said = _what_a_launcher_says()
        if said is None:
            return cls()
        launcher, variables = said
        shown = ", ".join(f"{name}={value}" for name, value in variables.items())
        if "MASTER_PORT" not in os.environ:
            raise UsageError(f"{launcher} says {shown}, but not where to meet: set MASTER_PORT")
        values = list(variables.values())
        try:
            if launcher == "Slurm":
                values[3:] = [_tasks_of_node(values[3], int(values[4]))]
            rank, size, local_rank, local_size = map(int, values)
        except (ValueError, IndexError):
            raise UsageError(f"{launcher} says {shown}: these must be numbers") from None
        if not (0 <= local_rank < local_size <= size and local_rank <= rank < size):
            raise UsageError(f"{launcher} says {shown}, which contradict each other")
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            launcher=launcher,
        )


def _what_a_launcher_says() -> tuple[Launcher, dict[str, str]] | None:
    """Who has started this process, and what it says; None if nobody says all that matters."""
    for launcher, names in _VARIABLES.items():
        if all(name in os.environ for name in names):
            return launcher, {name: os.environ[name] for name in names}
    return None


def _tasks_of_node(counts: str, node: int) -> str:
    """How many tasks a node has, by Slurm's list for all nodes, such as "8(x2),4"."""
    tasks: list[str] = []
    for each in counts.split(","):
        found = _TASKS_OF_NODES.fullmatch(each)
        if found is None:
            raise ValueError(each)
        tasks += [found[1]] * int(found[2] or 1)
    return tasks[node]
