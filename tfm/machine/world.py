"""The rank of this process and the world size, as its launcher sets them."""

import os
import re
import zlib
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
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_TASKS_PER_NODE = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_FIRST_HOST = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # node[03-07] of node[03-07,12],gpu1
_NUMBERS = re.compile(r"\[(\w+)[^\]]*\]")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below those that Linux gives to connections


@dataclass(frozen=True, kw_only=True)
class World:
    """The place of this process among the processes of a run.

    Attributes:
        rank: Rank of this process; only rank 0 writes files and prints.
        size: Number of processes.
        local_rank: Rank on this machine; also the index of the process's GPU.
        local_size: Number of processes on this machine.
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

    @property
    def spans_machines(self) -> bool:
        """Whether some processes are on other machines."""
        return self.size > self.local_size

    @classmethod
    def from_environment(cls) -> "World":
        """Return the world that torchrun or Slurm describes; a single process without either.

        The variables count only beside MASTER_ADDR and MASTER_PORT: `set_slurm_master` sets those
        for training. Everything else calls `current_world`, which does not fail.
        """
        launcher = _find_launcher()
        if launcher is None:
            _refuse_incomplete_variables()
            return cls()
        values = [os.environ[name] for name in _VARIABLES[launcher]]
        shown = ", ".join(map("=".join, zip(_VARIABLES[launcher], values, strict=True)))
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


def set_slurm_master() -> None:
    """Set MASTER_ADDR and MASTER_PORT for the tasks of a step of Slurm, unless they are set.

    They are the first host of the step, where rank 0 is, and a port for the job and the step.
    Slurm sets the variables of steps for what `srun` starts, but not for a batch script, which is a
    single process. So is a step of one task, which may be an interactive shell.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", *_VARIABLES["Slurm"])
    if any(name not in os.environ for name in names) or os.environ["SLURM_STEP_NUM_TASKS"] == "1":
        return
    job, step, nodes = (os.environ[name] for name in names[:3])
    if first := _FIRST_HOST.match(nodes):
        os.environ.setdefault("MASTER_ADDR", _NUMBERS.sub(r"\1", first[0]))
    port = _FIRST_PORT + zlib.crc32(f"{job}.{step}".encode()) % _NUM_PORTS
    os.environ.setdefault("MASTER_PORT", str(port))


def torchrun_restarts() -> tuple[int, int]:
    """Return how often torchrun has restarted the processes of this machine, and its limit."""
    names = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
    values = (os.environ.get(name, "") for name in names)
    count, limit = (int(value) if value.isdecimal() else 0 for value in values)
    return count, limit


def _find_launcher() -> Launcher | None:
    """Return the launcher whose variables are all set; None if there is none."""
    for launcher, names in _VARIABLES.items():
        if all(name in os.environ for name in (*_MASTER, *names)):
            return launcher
    return None


def _refuse_incomplete_variables() -> None:
    """Raise UsageError if some variables of torchrun are set beside MASTER_ADDR, but not all."""
    names = (*_MASTER, *_VARIABLES["torchrun"])
    found = [name for name in names if name in os.environ]
    if "MASTER_ADDR" in found and not {*found} <= {*_MASTER}:
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
