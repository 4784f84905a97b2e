"""What multiplies fp32 matrices on a CPU."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Of a product whose terms are of the order of 1, by the root of their number: fp32 has 1e-7.
_MOST_ERROR = 1e-5
_SIZE = 256

_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def multiply_fast() -> None:
    """Have oneDNN multiply fp32 matrices where MKL, which torch takes, is slow: on AMD's CPUs.

    torch offers it as a precision that may be less; without units for bf16 matrices (AMX) it is
    none less, which is checked.
    """
    if cpu_info("vendor_id") != "AuthenticAMD" or multiplies_by_onednn():
        return
    _MATMUL.fp32_precision = "bf16"
    if _error() > _MOST_ERROR:
        _MATMUL.fp32_precision = "none"


def multiplies_by_onednn() -> bool:
    """Whether oneDNN multiplies fp32 matrices, which prepares anew for each of their sizes."""
    return bool(_MATMUL.fp32_precision == "bf16")


def cpu_info(name: str) -> str:
    """What Linux says of the CPU under a name; empty where it does not."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _error() -> float:
    """The greatest error of a product's elements."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, _SIZE, _SIZE, generator=generator)
    exact = left.double() @ right.double()
    error: Tensor = (left @ right - exact).abs().max() / _SIZE**0.5
    return error.item()
