"""The processes of this machine that the flags of a command ask for."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.config.values import shown
from tfm.errors import UsageError
from tfm.machine.cpu import MAX_PER_CORE, num_cores
from tfm.machine.world import World, torchrun_restarts

_MAX_RESTARTS = 1_000
_GPUS = re.compile(r"auto|0*[1-9][0-9]{0,3}")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The processes of a run on this machine."""

    local_size: int | None = 1  # number of processes; None for one per GPU
    device: Literal["cpu", "cuda"] | None = None  # None leaves it to the settings
    restarts: int = 0  # at most, of all processes after one has failed

    @classmethod
    def from_flags(
        cls,
        *,
        gpus: str | None = None,
        processes: int | None = None,
        restarts: int | None = None,
        device: str | None = None,
        shares_gpus: bool = False,
    ) -> "Placement":
        """Return the placement that the flags of a command ask for.

        If several processes can share a GPU, `processes` leaves the device to the settings.
        """
        implied: Literal["cpu"] | None = None if shares_gpus else "cpu"
        problems = [
            *_device_problems(gpus, processes, device, implied),
            *_restart_problems(restarts),
        ]
        if problems:
            raise UsageError("; ".join(problems))
        return cls(
            local_size=None if gpus == "auto" else int(gpus or processes or 1),
            device="cuda" if gpus is not None else implied if processes is not None else None,
            restarts=restarts or 0,
        )

    @property
    def needs_launcher(self) -> bool:
        """Whether this command has to start other processes, instead of training by itself."""
        return self.restarts > 0 or (self.local_size != 1 and self.num_local_processes() > 1)

    def num_local_processes(self) -> int:
        """Return the number of processes, with one per GPU counted."""
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
        """Check that a launcher has started the processes of the flags, and can restart them."""
        local_size = self.local_size or world.local_size
        if self != Placement() and not local_size == world.local_size == world.size:
            raise UsageError(
                f"{world.launcher} has started {world.local_size} processes on this machine and "
                f"{world.size} in all, but the flags ask for {local_size}: set the number of "
                "processes in either the launcher or tfm's flags, not both"
            )
        shares_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if world.spans_machines and torchrun_restarts()[1] and shares_store:
            raise UsageError(
                "torchrun --max-restarts on several machines needs --rdzv-backend c10d, and "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment: else restarted processes "
                "look for those that have ended"
            )


def _device_problems(
    gpus: str | None, processes: int | None, device: str | None, implied: str | None
) -> Iterator[str]:
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
        yield "--processes N does not use an Apple GPU: leave out --device mps"
    elif processes is not None and device == "cuda" and implied == "cpu":
        yield "--processes N uses the CPU: with --device cuda, give --gpus N instead"


def _restart_problems(restarts: int | None) -> Iterator[str]:
    if restarts is not None and not 0 <= restarts <= _MAX_RESTARTS:
        yield f"--restarts is {shown(restarts)}, but must be from 0 to {_MAX_RESTARTS}"
