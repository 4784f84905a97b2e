"""What a benchmark reads of a device: its clock, its memory, the rate of its matrix products."""

import resource
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import torch

from tfm.device.cpu import this_cpu

_REPETITIONS = 5


class StepClock:
    """Times steps, one after another, without making a GPU wait between them.

    Args:
        device: Where the steps compute; a GPU is to be idle at the first mark.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Note that a step begins here, and the one before ends."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """What each step took, from mark to mark; waits for the device."""
        wait_for(self._device)
        if self._device.type == "cuda":
            return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]
        return [end - start for start, end in pairwise(self._times)]


def wait_for(device: torch.device) -> None:
    """Return once a device has done all it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, kw_only=True)
class MatrixRate:
    """Operations a second that a device reached in plain matrix products.

    Attributes:
        size: Rows and columns of each matrix.
        best: The highest rate.
        median: The median of all.
    """

    size: int
    best: float
    median: float

    @classmethod
    def of(cls, device: torch.device, rates: list[float]) -> "MatrixRate":
        """What rates of `matrix_rates` come to."""
        return cls(size=_matrix_size(device), best=max(rates), median=statistics.median(rates))


def matrix_rates(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Operations a second of some products of square matrices, measured now.

    Args:
        device: Where to compute.
        dtype: Type of factors and product.
    """
    size = _matrix_size(device)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = left @ right  # the first use of a shape costs more
    wait_for(device)
    clock = StepClock(device)
    clock.mark()
    for _ in range(_REPETITIONS):
        torch.mm(left, right, out=product)
        clock.mark()
    return [2 * size**3 / seconds for seconds in clock.seconds()]


def _matrix_size(device: torch.device) -> int:
    return 8192 if device.type == "cuda" else 2048


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The most memory that was in use.

    Attributes:
        device: Bytes on a GPU, since `forget_peak_memory`; None on a CPU.
        process: Bytes of this process, since its start.
    """

    device: int | None
    process: int


def forget_peak_memory(device: torch.device) -> None:
    """Count a GPU's memory from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """The most memory that was in use so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(
        device=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        process=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    )


def device_name(device: torch.device) -> str:
    """The name that the maker of a device gave it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return this_cpu().model
