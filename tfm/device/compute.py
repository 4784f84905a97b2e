"""Where to compute, and in what arithmetic."""

import contextlib
import statistics
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from tfm.config import DeviceName, InferencePrecision
from tfm.device.cpu import this_cpu
from tfm.device.matmul import choose_fp32_library
from tfm.device.memory import keep_freed_memory
from tfm.errors import UsageError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class Compute:
    """A device and the arithmetic of its matrix products; all else is fp32."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Run matrix products in this arithmetic."""
        if self.dtype not in (torch.bfloat16, torch.float16):
            return contextlib.nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, self.dtype)
        return context

    def __str__(self) -> str:
        name = "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        precision = next(key for key, dtype in _DTYPES.items() if dtype == self.dtype)
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return f"{name} in {precision}{threads}"


def choose_compute(
    device: DeviceName,
    precision: InferencePrecision,
    *,
    local_rank: int = 0,
    trains: bool = False,
) -> Compute:
    """Settle what "auto" means here.

    Args:
        device: Where to compute.
        precision: Arithmetic of matrix products.
        local_rank: Number of the GPU.
        trains: Whether it is for training.

    Raises:
        UsageError: A GPU is asked for where there is none, or int8 on one, or bf16 on a CPU
            without units for it.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError("device is cuda, but torch sees no GPU: use --device cpu")
    use_gpu = has_gpu and device != "cpu"
    if use_gpu and local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"a process is to use GPU {local_rank}, but torch sees {torch.cuda.device_count()}: "
            "start fewer processes"
        )
    if use_gpu and precision == "int8":
        raise UsageError("int8 is for CPUs alone: use --precision bf16, or --device cpu")
    if precision == "auto" and use_gpu:
        # bf16 on a GPU that has it, not merely imitates it
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp16"
    elif precision == "auto":
        # bf16 where the CPU has units that multiply such matrices (AMX)
        precision = "bf16" if trains and this_cpu().has_amx else "fp32"
    elif precision == "bf16" and not use_gpu and not this_cpu().has_bf16:
        others = "fp32" if trains else "fp32 (or int8)"
        raise UsageError(f"this CPU has no bf16 units: use --precision {others}")
    if use_gpu:
        torch.cuda.set_device(local_rank)
        # Some cuDNN attention kernels round the dropout probability.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        # Its backward pass is slow on sentences: plain products train 1.7 times as fast.
        torch.backends.cuda.enable_flash_sdp(not trains)
        keep_freed_memory()
        choose_fp32_library()
    chosen = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    return Compute(chosen, _DTYPES[precision])


def num_gpus() -> int:
    """How many GPUs this process sees."""
    return torch.cuda.device_count()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def release_memory(device: torch.device) -> None:
    """Hand back what was kept for reuse, so that pieces of other sizes find room."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def single_precision_flops(device: torch.device) -> float:
    """Operations a second that a device sustains in fp32 products: measured, in a moment.

    The paper estimates a training's cost as its time by this capacity (§6.1).
    """
    size, repetitions = (8192, 5) if device.type == "cuda" else (1024, 5)
    matrix = torch.randn(size, size, device=device)
    seconds = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - started)
    return float(2 * size**3 / statistics.median(seconds[1:]))
