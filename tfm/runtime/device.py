"""Where to compute, and in what arithmetic."""

import statistics
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from tfm.config import DeviceName, Precision
from tfm.errors import UsageError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device and the arithmetic of its matrix products; all else is fp32."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Run matrix products in this arithmetic."""
        enabled = self.dtype != torch.float32
        context: AbstractContextManager[None] = torch.autocast(
            self.device.type, self.dtype, enabled=enabled
        )
        return context

    def __str__(self) -> str:
        name = "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        precision = next(key for key, dtype in _DTYPES.items() if dtype == self.dtype)
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return f"{name} in {precision}{threads}"


def choose_compute(device: DeviceName, precision: Precision) -> Compute:
    """Settle what "auto" means here.

    Raises:
        UsageError: A GPU is asked for where there is none.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError("device is cuda, but torch sees no GPU: use --device cpu")
    use_gpu = has_gpu and device != "cpu"
    if precision == "auto":
        precision = "bf16" if use_gpu and torch.cuda.is_bf16_supported() else "fp32"
    if use_gpu:
        # Some cuDNN attention kernels round the dropout probability.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        # Its backward pass is slow on sentences: plain products train 1.7 times as fast.
        torch.backends.cuda.enable_flash_sdp(False)
    return Compute(torch.device("cuda" if use_gpu else "cpu"), _DTYPES[precision])


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
