"""Time, memory and peak matrix-product rate of a device, for benchmarks."""

import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tfm import __version__
from tfm.device.clock import DeviceClock
from tfm.device.compute import Compute, device_name
from tfm.errors import UsageError
from tfm.world import current_world

_REPETITIONS = 5


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The software and hardware of a benchmark; subclasses add what was measured."""

    version: str  # of tfm
    torch: str  # version of torch
    device: str  # the manufacturer's name
    compute: str  # device and precision, in words
    num_threads: int  # of torch, on the CPU

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def environment(compute: Compute) -> dict[str, Any]:
    """Return the fields of `BenchResult` for this process."""
    device = compute.device
    return {
        "version": __version__,
        "torch": torch.__version__,
        "device": device_name(device),
        "compute": str(compute),
        "num_threads": torch.get_num_threads(),
    }


def require_single_process(command: str) -> None:
    """Raise UsageError if a launcher has started several processes."""
    world = current_world()
    if world.size > 1:
        raise UsageError(
            f"tfm bench {command} times a single process, but {world.launcher} has started "
            f"{world.size}: run it without a launcher"
        )


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all work that was submitted to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, kw_only=True)
class MatrixRate:
    """FLOP/s of plain matrix products on a device."""

    size: int  # rows and columns of each matrix
    best: float
    median: float

    @classmethod
    def of(cls, device: torch.device, rates: list[float]) -> "MatrixRate":
        """Summarize the FLOP/s that `matrix_rates` measured on a device."""
        return cls(size=_matrix_size(device), best=max(rates), median=statistics.median(rates))


def matrix_rates(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Measure the FLOP/s of a few products of square matrices."""
    size = _matrix_size(device)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = left @ right  # the first product of a shape is slower
    synchronize(device)
    clock = DeviceClock(device)
    clock.mark()
    for _ in range(_REPETITIONS):
        torch.mm(left, right, out=product)
        clock.mark()
    return [2 * size**3 / seconds for seconds in clock.seconds()]


def _matrix_size(device: torch.device) -> int:
    return 8192 if device.type == "cuda" else 2048


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Peak memory in bytes."""

    device: int | None  # of a GPU since `reset_peak_memory`; None on a CPU
    process: int | None  # resident memory of this process since its start; None on Windows


def reset_peak_memory(device: torch.device) -> None:
    """Start to measure the peak memory of a GPU from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """Return the peak memory so far."""
    return PeakMemory(
        device=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        process=None if sys.platform == "win32" else _peak_resident_memory(),
    )


def _peak_resident_memory() -> int:
    import resource  # not part of Python on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
