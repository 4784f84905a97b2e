"""How many threads compute on a CPU, alone or beside other programs.

The threads of an operation wait for each other at its end. If another program holds up one of them,
all wait: one busy program beside two threads on two cores leaves a quarter of the speed, and one
thread would have more than half. So fewer threads compute while other programs do.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tfm.device.cpu import num_cores
from tfm.reporting import say

_STAT = Path("/proc/stat")
_WINDOW_SECONDS = 2.0
# Fewer threads if this many cores are missing, more if this many are free beside those in use.
_MISSING, _FREE = 0.4, 0.75


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Seconds by the clock, computed by this process, and of its cores being idle, added up."""

    wall: float
    own: float
    idle: float


def read_cpu_times() -> CpuTimes | None:
    """Return the times of this process and its cores; None where the system does not tell."""
    if not _STAT.is_file():
        return None
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = map(str.split, _STAT.read_text(encoding="utf-8").splitlines())
    # user, nice, system, idle, waiting for disks, …
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in cores)
    idle = ticks / os.sysconf("SC_CLK_TCK")
    return CpuTimes(wall=time.monotonic(), own=time.process_time(), idle=idle)


def set_num_threads(asked: int | None, *, num_processes: int = 1) -> None:
    """Set how many threads this process computes with on a CPU.

    Args:
        asked: Threads of all processes together; None leaves OMP_NUM_THREADS as it is, or takes one
            for each core.
        num_processes: The processes of this machine that share them.
    """
    if asked is None and "OMP_NUM_THREADS" in os.environ:
        return
    # torch does not know of quotas, but of cores that share their units.
    together = asked or min(torch.get_num_threads(), num_cores())
    torch.set_num_threads(max(1, together // num_processes))


class ComputeThreads:
    """The threads that this process computes with on a CPU.

    A number that is asked for, by a setting or by OMP_NUM_THREADS, stays as it is. Otherwise there
    is one for each core, and `adapt` takes some away while other programs use the cores.

    Args:
        asked: Threads of all processes together; None if nobody asked for a number.
        num_processes: The processes of this machine that share them.
        read_times: Reads the times by which to adapt.
    """

    def __init__(
        self,
        asked: int | None,
        *,
        num_processes: int = 1,
        read_times: Callable[[], CpuTimes | None] = read_cpu_times,
    ) -> None:
        set_num_threads(asked, num_processes=num_processes)
        self._max_threads = torch.get_num_threads()
        self._read_times = read_times
        is_fixed = asked is not None or "OMP_NUM_THREADS" in os.environ or num_processes > 1
        self._before = None if is_fixed or self._max_threads == 1 else read_times()
        self._has_told = False

    def adapt(self) -> None:
        """Take as many threads as there are cores free for them.

        To be called between steps, by the thread that computes; it looks every few seconds.
        """
        if self._before is None or time.monotonic() - self._before.wall < _WINDOW_SECONDS:
            return
        now = self._read_times()
        if now is None:
            return
        before, self._before = self._before, now
        used_or_free = (now.own - before.own + now.idle - before.idle) / (now.wall - before.wall)
        current = torch.get_num_threads()
        if used_or_free < current - _MISSING or used_or_free > current + _FREE:
            wanted = max(1, min(self._max_threads, round(used_or_free)))
            if wanted == current:
                return
            torch.set_num_threads(wanted)
            if not self._has_told:
                self._has_told = True
                say(
                    f"other programs are using this CPU: computing with {wanted} of "
                    f"{self._max_threads} threads until they are done "
                    f"(--threads {self._max_threads} keeps all of them)"
                )
