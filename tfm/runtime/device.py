"""Where to compute, and in what arithmetic."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from tfm.config import DeviceName, Precision
from tfm.errors import UsageError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FP32_TOLERANCE = 1e-5


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
        _choose_fp32_products()
    return Compute(torch.device("cuda" if use_gpu else "cpu"), _DTYPES[precision])


def _choose_fp32_products() -> None:
    """Take oneDNN's fp32 matrix products on CPUs where they are as exact as the default's.

    The setting that leads there allows oneDNN to round to bf16. CPUs without bf16 matrix units
    compute in fp32 all the same, and on some of them twice as fast as the default library.
    """
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
    if error > _FP32_TOLERANCE:
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
