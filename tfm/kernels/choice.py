"""Which operations a model is computed with."""

import torch

from tfm.config import Kernels
from tfm.errors import UsageError
from tfm.kernels import has_triton
from tfm.kernels.cpu_operations import CpuOperations
from tfm.kernels.operations import PLAIN, Operations
from tfm.runtime.device import Compute

# A CPU imitates fp16, and slowly.
_CPU_TYPES = (torch.float32, torch.bfloat16)
# Of NVIDIA's Ampere, the first with matrix products in bf16.
_GPU_CAPABILITY = (8, 0)


def choose_operations(compute: Compute, kernels: Kernels) -> Operations:
    """Choose what to compute a model's layers with.

    Args:
        compute: Device and arithmetic.
        kernels: Which kind; "auto" takes fast ones where they have been measured to be, which those
            for GPUs have not.

    Raises:
        UsageError: There are no fast ones for the device.
    """
    if kernels == "plain":
        return PLAIN
    if compute.device.type == "cpu" and compute.dtype in _CPU_TYPES:
        return CpuOperations(compute.dtype)
    if kernels == "auto":
        return PLAIN
    return _gpu_operations(compute)


def _gpu_operations(compute: Compute) -> Operations:
    """Those of a GPU.

    Raises:
        UsageError: There is none that can compute them.
    """
    if compute.device.type != "cuda":
        raise UsageError(f"there are no fast kernels for {compute}: use --kernels auto")
    capability = torch.cuda.get_device_capability(compute.device)
    if capability < _GPU_CAPABILITY:
        found, needed = (".".join(map(str, each)) for each in (capability, _GPU_CAPABILITY))
        raise UsageError(
            f"fast kernels need a GPU of compute capability {needed}, but that of {compute} is "
            f"{found}: use --kernels auto"
        )
    if not has_triton():
        raise UsageError(
            "fast kernels on a GPU need Triton, which is not installed: install it (pip install "
            "triton), or use --kernels auto"
        )
    from tfm.kernels.gpu_operations import GpuOperations

    return GpuOperations()
