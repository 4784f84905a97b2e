"""The library of fp32 matrix products on a CPU: MKL, torch's default, or oneDNN."""

from typing import Any

import torch
from torch import Tensor

from tfm.device.cpu import this_cpu

# The largest error of an element, divided by the root of the number of its terms of size 1.
_MAX_ERROR = 1e-5
_SIZE = 256

_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def choose_fp32_library() -> None:
    """Make oneDNN multiply fp32 matrices where MKL is slow: on AMD CPUs with AVX-512.

    torch calls this mode "bf16"; without AMX it computes in full fp32, which is verified. Without
    AVX-512 torch ignores it.
    """
    cpu = this_cpu()
    if cpu.vendor != "AuthenticAMD" or not cpu.has_avx512 or uses_onednn():
        return
    _MATMUL.fp32_precision = "bf16"
    if _error() > _MAX_ERROR:
        _MATMUL.fp32_precision = "none"


def uses_onednn() -> bool:
    """Return whether oneDNN multiplies fp32 matrices, for which each new shape costs time."""
    return bool(_MATMUL.fp32_precision == "bf16")


def _error() -> float:
    """Return the largest error of a product's elements, normalized as `_MAX_ERROR`."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, _SIZE, _SIZE, generator=generator)
    exact = left.double() @ right.double()
    error: Tensor = (left @ right - exact).abs().max() / _SIZE**0.5
    return error.item()
