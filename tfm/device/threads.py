"""The number of threads that compute on a CPU, with fewer while other programs use its cores.

Each operation ends with a barrier, at which all threads wait if another program delays one: beside
one busy program, two threads on two cores are slower than one.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import torch

from tfm.device.cpu import chosen_threads, num_cores, read_cpu_times
from tfm.reporting import say

_WINDOW_SECONDS = 2.0
# Use fewer threads if this many cores are missing, more if this many are idle.
_MISSING_CORES, _IDLE_CORES = 0.4, 0.75


def set_num_threads(num_threads: int | None, *, num_processes: int = 1) -> None:
    """Set the number of threads with which this process computes on a CPU.

    Args:
        num_threads: Threads of all processes together; None for OMP_NUM_THREADS, or one per core.
        num_processes: Number of processes on this machine.

    Raises:
        UsageError: This machine has far fewer cores.
    """
    if num_threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    # torch ignores quotas, but counts hyper-threads of a core once.
    default = min(torch.get_num_threads(), num_cores())
    num_threads = default if num_threads is None else chosen_threads(num_threads)
    torch.set_num_threads(max(1, num_threads // num_processes))


def oversubscription(
    device: torch.device, num_threads: int | None, *, num_processes: int = 1
) -> str | None:
    """Return a warning if a CPU has fewer cores than the threads or processes asked for."""
    cores = num_cores()
    for name, number in (("processes", num_processes), ("threads", num_threads or 0)):
        if device.type == "cpu" and number > cores:
            return (
                f"warning: {number} {name} share the {cores} core{'s' * (cores > 1)} of this "
                f"machine and wait for each other: use --{name} {cores}"
            )
    return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread in this block."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class ComputeThreads:
    """The threads of one process: a requested number, or adapted to the load of the machine.

    The arguments are those of `set_num_threads`. A number in them or in OMP_NUM_THREADS is fixed.
    """

    def __init__(self, num_threads: int | None, *, num_processes: int = 1) -> None:
        set_num_threads(num_threads, num_processes=num_processes)
        self._max_threads = torch.get_num_threads()
        is_fixed = num_threads is not None or "OMP_NUM_THREADS" in os.environ or num_processes > 1
        self._previous = None if is_fixed or self._max_threads == 1 else read_cpu_times()
        self._has_reported = False

    def adapt(self) -> None:
        """Use as many threads as there are cores free for them.

        Call it between steps, on the thread that computes; it acts every few seconds only.
        """
        previous = self._previous
        if previous is None or time.monotonic() - previous.wall < _WINDOW_SECONDS:
            return
        now = read_cpu_times()
        if now is None:
            return
        self._previous = now
        available = now.cores_since(previous)
        current = torch.get_num_threads()
        num_threads = max(1, min(self._max_threads, round(available)))
        if current - _MISSING_CORES <= available <= current + _IDLE_CORES or num_threads == current:
            return
        torch.set_num_threads(num_threads)
        if not self._has_reported:
            self._has_reported = True
            say(
                f"other programs are using this CPU: computing with {num_threads} of "
                f"{self._max_threads} threads until they stop "
                f"(--threads {self._max_threads} keeps all of them)"
            )
