"""Which operations a model is computed with."""

from collections.abc import Callable
from dataclasses import replace

import torch

from tfm.backends import cpu_inference, has_triton
from tfm.backends.cpu import CpuBackend
from tfm.backends.cpu_inference import CpuInferenceBackend
from tfm.backends.plain import PLAIN, Backend
from tfm.backends.verification import MAX_ERRORS, inference_error, training_error
from tfm.config import DeviceName, InferencePrecision, Kernels
from tfm.device.compute import Compute, choose_compute
from tfm.device.cpu import this_cpu
from tfm.device.matmul import uses_onednn
from tfm.errors import UsageError
from tfm.reporting import say

# A CPU imitates fp16, and slowly.
_CPU_TYPES = (torch.float32, torch.bfloat16)
# Of NVIDIA's Ampere, the first with matrix products in bf16.
_GPU_CAPABILITY = (8, 0)
# Of rows in bf16 or int8, whose products cost little beside copies: measured in bf16.
_NARROW_ROWS = 0.7


def verified_compute(
    device: DeviceName,
    precision: InferencePrecision,
    *,
    local_rank: int = 0,
    trains: bool = False,
    notify: Callable[[str], None] = say,
) -> Compute:
    """Choose where to compute and in what arithmetic; fp32 if another one is wrong on this CPU.

    Args:
        device: Where to compute.
        precision: Arithmetic of matrix products.
        local_rank: Number of the GPU.
        trains: Whether it is for training.
        notify: Where to say what the user should know.

    Raises:
        UsageError: This machine cannot do what is asked for.
    """
    compute = choose_compute(device, precision, local_rank=local_rank, trains=trains)
    dtype = compute.dtype
    if compute.device.type != "cpu" or dtype not in (torch.bfloat16, torch.int8):
        return compute
    if dtype == torch.int8:
        if not cpu_inference.HAS_INT8:
            raise UsageError("torch has no int8 for this CPU: use --precision fp32")
        if not this_cpu().has_int8:
            notify(
                "warning: this CPU has no int8 units (VNNI): weights are rounded to 7 bits, and "
                "little speed is gained over fp32"
            )
    error = inference_error(dtype)  # of validation, too
    if trains:
        error = max(error, training_error(dtype))
    if error <= MAX_ERRORS[dtype]:
        return compute
    notify(f"warning: {_wrong(dtype, error)}: computing in fp32 instead")
    return replace(compute, dtype=torch.float32)


def _wrong(dtype: torch.dtype, error: float) -> str:
    """Say how wrong products are."""
    name = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float32: "prepacked fp32"}[dtype]
    return (
        f"{name} matrix products are wrong on this CPU (relative error {error:.1g}, at most "
        f"{MAX_ERRORS[dtype]:g} expected)"
    )


def training_backend(compute: Compute, kernels: Kernels) -> Backend:
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
        return CpuBackend(compute.dtype)
    if kernels == "auto":
        return PLAIN
    return _gpu_backend(compute)


def inference_backend(
    compute: Compute, kernels: Kernels = "auto", *, notify: Callable[[str], None] = say
) -> Backend:
    """Choose what to compute a model with that learns nothing.

    Args:
        compute: Device and arithmetic.
        kernels: As for `training_backend`.
        notify: Where to say what the user should know.

    Raises:
        UsageError: There are no fast ones for the device; or the arithmetic is int8, and this CPU
            or this torch cannot do it.
    """
    if kernels == "plain":
        if compute.dtype == torch.int8:
            raise UsageError("plain kernels have no int8: use --kernels auto")
        return PLAIN
    backend: Backend = PLAIN
    if compute.device.type == "cpu":
        backend = _cpu_inference(compute, notify)
    if kernels == "auto" or backend is not PLAIN:
        return backend
    _check_has_kernels(compute)
    from tfm.backends.gpu_inference import GpuInferenceBackend

    return GpuInferenceBackend(compute.dtype)


def _cpu_inference(compute: Compute, notify: Callable[[str], None]) -> Backend:
    match compute.dtype:
        case torch.int8:
            return CpuInferenceBackend(
                cpu_inference.prepack_int8,
                torch.float32,
                compaction_threshold=_NARROW_ROWS,
                keeps_sizes=True,
            )
        case torch.bfloat16:
            return CpuInferenceBackend(
                cpu_inference.prepack_bf16,
                torch.bfloat16,
                compaction_threshold=_NARROW_ROWS,
                keeps_sizes=True,
            )
        case torch.float32:
            error = inference_error(torch.float32)
            if error <= MAX_ERRORS[torch.float32]:
                return CpuInferenceBackend(
                    cpu_inference.prepack_fp32, torch.float32, keeps_sizes=uses_onednn()
                )
            notify(f"warning: {_wrong(torch.float32, error)}: computing with plain kernels instead")
    return PLAIN


def _gpu_backend(compute: Compute) -> Backend:
    _check_has_kernels(compute)
    from tfm.backends.gpu import GpuBackend

    return GpuBackend()


def _check_has_kernels(compute: Compute) -> None:
    """Raise UsageError if a device cannot compute the kernels for GPUs."""
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
