"""The device to compute on, the arithmetic of matrix products, and the threads of a CPU.

Each operation ends with a barrier: if another program delays a thread, all threads wait. Beside one
busy program, two threads on two cores are slower than one thread.
"""

import contextlib
import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tfm.config import InferenceDevice, InferencePrecision
from tfm.errors import UsageError
from tfm.machine.cpu import chosen_threads, memory_bytes, num_cores, read_cpu_times, this_cpu
from tfm.reporting import say

HAS_MKL: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}
_MEASURING_SECONDS = 0.1
# The largest error of an element, divided by the root of the number of its terms of size 1.
_MAX_ERROR = 1e-5
# The settings of oneDNN's matrix products.
_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # not in its stub
_ONEDNN_MODE = "bf16"  # torch's name for fp32 products by oneDNN
# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
# The messages of torch's CPU allocator; of CUDA, its driver, Triton and NCCL; of cuBLAS and cuDNN.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|out of memory|CU(BLAS|DNN)_STATUS_\w*ALLOC(ATION)?_FAILED"
)


@dataclass(frozen=True)
class Compute:
    """A device and the arithmetic of its matrix products."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which matrix products use this arithmetic."""
        if self.dtype not in (torch.bfloat16, torch.float16):
            return contextlib.nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, self.dtype)
        return context

    @property
    def precision(self) -> str:
        """The value of the setting `precision`, such as bf16."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    def __str__(self) -> str:
        is_cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if is_cuda else self.device.type
        if self.device.type != "cpu":
            return f"{name} in {self.precision}"
        num_threads = torch.get_num_threads()
        return f"{name} in {self.precision}, {num_threads} thread{'s' if num_threads > 1 else ''}"


def choose_compute(
    device: InferenceDevice,
    precision: InferencePrecision,
    *,
    local_rank: int = 0,
    trains: bool = False,
) -> Compute:
    """Resolve "auto", for training if `trains`, and configure torch for the device."""
    if device == "mps":
        return _apple_compute(precision)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError("device is cuda, but torch sees no GPU: use --device cpu")
    use_gpu = has_gpu and device != "cpu"
    if use_gpu and local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank} needs its own GPU, but torch sees only "
            f"{torch.cuda.device_count()}: start fewer processes"
        )
    if use_gpu and precision == "int8":
        raise UsageError("int8 is supported on CPUs only: use --precision bf16, or --device cpu")
    if precision == "auto" and use_gpu:
        # GPUs without bf16 emulate it, but have fp16.
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp16"
    elif precision == "auto":
        precision = "bf16" if trains and this_cpu().multiplies_bf16 else "fp32"
    elif precision == "bf16" and not use_gpu and not this_cpu().has_bf16:
        supported = "fp32" if trains else "fp32 (or int8)"
        raise UsageError(f"this CPU has no bf16 units: use --precision {supported}")
    if use_gpu:
        torch.cuda.set_device(local_rank)
        # Some cuDNN attention kernels round the dropout probability.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        # The backward pass of flash attention is slow on short sentences.
        torch.backends.cuda.enable_flash_sdp(not trains)
        keep_freed_memory()
        if trains:  # decoding has prepacked weights
            choose_fp32_library()
    chosen = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    return Compute(chosen, DTYPES[precision])


def _apple_compute(precision: InferencePrecision) -> Compute:
    """Return the Apple GPU in fp32, which nobody has tried; other precisions are refused."""
    if not torch.backends.mps.is_available():
        raise UsageError("device is mps, but torch sees no Apple GPU: use --device cpu")
    if precision not in ("auto", "fp32"):
        raise UsageError(
            f"precision is {precision}, but an Apple GPU computes in fp32 here: use --precision "
            "fp32, or --device cpu"
        )
    return Compute(torch.device("mps"), torch.float32)


def device_name(device: torch.device) -> str:
    """Return the name that the manufacturer gave a GPU or this CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else this_cpu().model


def torch_and_device() -> str:
    """Return the version of torch and the name of the device that "auto" chooses."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return f"torch {torch.__version__}, {device_name(device)}"


def device_memory_bytes(device: torch.device) -> int:
    """Return the total memory of a device, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return memory_bytes()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse.

    By default the large tensors that each training step frees and allocates again are mapped anew,
    and the kernel clears their pages: a tenth of the time of a step.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, sys.maxsize & 0x7FFFFFFF)


def choose_fp32_library() -> None:
    """Make oneDNN multiply fp32 matrices from now on, where it is faster than MKL."""
    if _onednn_is_faster():
        _MATMUL.fp32_precision = _ONEDNN_MODE


@contextlib.contextmanager
def onednn_products() -> Iterator[None]:
    """Make oneDNN multiply fp32 matrices in this block where it is faster than MKL.

    In batched products this holds for contiguous tensors: torch copies others for oneDNN.
    """
    before = _MATMUL.fp32_precision
    choose_fp32_library()
    try:
        yield
    finally:
        _MATMUL.fp32_precision = before


@cache
def has_fast_exp() -> bool:
    """Return whether MKL computes exponentials three times as fast as torch's softmax."""
    return HAS_MKL and this_cpu().vendor == "GenuineIntel"


@cache
def _onednn_is_faster() -> bool:
    """Return whether this is an AMD CPU with AVX-512 and oneDNN multiplies accurately on it.

    Without AVX-512, torch ignores oneDNN's mode for fp32. Without AMX, the mode computes in full
    fp32 in spite of its name, which is verified here.
    """
    cpu = this_cpu()
    if cpu.vendor != "AuthenticAMD" or not cpu.has_avx512:
        return False
    before = _MATMUL.fp32_precision
    _MATMUL.fp32_precision = _ONEDNN_MODE
    error = _product_error()
    _MATMUL.fp32_precision = before
    return error <= _MAX_ERROR


def _product_error(size: int = 256) -> float:
    """Return the largest error of a product's elements, normalized as `_MAX_ERROR`."""
    left, right = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0))
    error: Tensor = (left @ right - left.double() @ right.double()).abs().max() / size**0.5
    return error.item()


def measure_fp32_flops(device: torch.device) -> float:
    """Measure the sustained fp32 FLOP/s of a device.

    The paper estimates the cost of training as its time multiplied by this (§6.1).
    """
    size = 8192 if device.type == "cuda" else 1024
    compute = Compute(device, torch.float32)
    return measure_product_flops(compute, num_rows=size, d_in=size, d_out=size)


def measure_product_flops(
    compute: Compute, *, d_in: int, d_out: int, num_rows: int | None = None
) -> float:
    """Measure the FLOP/s of products [num_rows, d_in] × [d_in, d_out], in a tenth of a second.

    It draws no random numbers.
    """
    num_rows = num_rows or (4096 if compute.device.type == "cuda" else 256)
    rows = torch.ones(num_rows, d_in, device=compute.device)
    weight = torch.ones(d_in, d_out, device=compute.device)
    rows, weight = rows.to(compute.dtype), weight.to(compute.dtype)
    float((rows @ weight)[0, 0])  # the first product of a shape is slower
    started, num_products = time.perf_counter(), 0
    while not num_products or time.perf_counter() - started < _MEASURING_SECONDS:
        float((rows @ weight)[0, 0])  # synchronizes
        num_products += 1
    seconds = time.perf_counter() - started
    return 2 * num_rows * d_in * d_out * num_products / seconds


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of a tensor of any shape, under autocast or not."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on any device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


_WINDOW_SECONDS = 2.0
# Use fewer threads if this many cores are missing, more if this many are idle.
_MISSING_CORES, _IDLE_CORES = 0.4, 0.75


def set_num_threads(num_threads: int | None, *, num_processes: int = 1) -> None:
    """Set the number of threads of this process's computations on a CPU.

    Args:
        num_threads: Threads of all processes together; None for OMP_NUM_THREADS, or one per core.
        num_processes: Number of processes on this machine.
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

    Takes the arguments of `set_num_threads`. A number in them or in OMP_NUM_THREADS is fixed.
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
