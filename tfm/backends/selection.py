"""Choose the backend and the arithmetic that suit a device."""

from collections.abc import Callable
from dataclasses import replace

import torch

from tfm.backends import inference_cpu
from tfm.backends.inference_cpu import CpuInference
from tfm.backends.inference_gpu import GpuInference
from tfm.backends.plain import (
    PLAIN_INFERENCE,
    PLAIN_TRAINING,
    InferenceBackend,
    TrainingBackend,
)
from tfm.backends.training_compiled import CompiledTraining, compilation_problem, flash_problem
from tfm.backends.training_cpu import CpuTraining
from tfm.backends.verification import MAX_ERRORS, inference_error, training_error
from tfm.config import InferenceConfig, InferenceDevice, InferencePrecision, Kernels
from tfm.device.compute import Compute, choose_compute
from tfm.device.cpu import this_cpu
from tfm.errors import UsageError
from tfm.reporting import say

# CPUs emulate fp16, slowly.
_CPU_TRAINING_DTYPES = (torch.float32, torch.bfloat16)
# In bf16 and int8, matrix products cost little compared with copies: measured in bf16.
_NARROW_COMPACTION_THRESHOLD = 0.7


def verified_compute(
    device: InferenceDevice,
    precision: InferencePrecision,
    *,
    local_rank: int = 0,
    trains: bool = False,
    notify: Callable[[str], None] = say,
) -> Compute:
    """Choose device and arithmetic; fall back to fp32 if the arithmetic is wrong on this CPU.

    `trains` includes training in the choice and the verification; `notify` receives warnings.

    Raises:
        UsageError: This machine does not support the device or the precision.
    """
    compute = choose_compute(device, precision, local_rank=local_rank, trains=trains)
    dtype = compute.dtype
    if compute.device.type == "cpu" and dtype == torch.float16 and not this_cpu().multiplies_fp16:
        faster = "bf16" if this_cpu().multiplies_bf16 else "fp32"
        notify(
            "warning: this CPU emulates fp16, which may be a hundred times slower than "
            f"{faster}: use --precision {faster}"
        )
    if compute.device.type != "cpu" or dtype not in (torch.bfloat16, torch.int8):
        return compute
    if dtype == torch.int8:
        if not inference_cpu.HAS_INT8:
            raise UsageError(
                "this build of torch has no int8 products for this CPU: use --precision fp32"
            )
        if not this_cpu().has_int8:
            notify(
                "warning: this CPU has no int8 units (VNNI): weights are rounded to 7 bits, and "
                "int8 is hardly faster than fp32"
            )
    error = inference_error(dtype)  # validation computes as inference does
    if trains:
        error = max(error, training_error(dtype))
    if error <= MAX_ERRORS[dtype]:
        return compute
    notify(_wrong_products(dtype, error, fallback="in fp32"))
    return replace(compute, dtype=torch.float32)


def _wrong_products(dtype: torch.dtype, error: float, *, fallback: str) -> str:
    name = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float32: "fast fp32"}[dtype]
    return (
        f"warning: {name} matrix products are wrong on this CPU (relative error {error:.1g}, at "
        f"most {MAX_ERRORS[dtype]:g} expected): computing {fallback} instead"
    )


def training_backend(
    compute: Compute,
    kernels: Kernels,
    *,
    compiles: bool = True,
    notify: Callable[[str], None] = say,
) -> TrainingBackend:
    """Choose the backend for training; `compiles` allows compilation on a GPU.

    `notify` receives warnings.
    """
    if kernels == "auto" and compute.device.type == "cpu" and compute.dtype in _CPU_TRAINING_DTYPES:
        return _cpu_training(compute.dtype, notify)
    if kernels == "auto" and compute.device.type == "cuda" and compiles:
        return _compiled_training(compute, notify)
    return PLAIN_TRAINING


def inference_backend(
    compute: Compute, kernels: Kernels = "auto", *, notify: Callable[[str], None] = say
) -> InferenceBackend:
    """Choose the backend for inference; `notify` receives warnings.

    Raises:
        UsageError: `kernels` is "plain", and the arithmetic is int8.
    """
    if kernels == "plain" and compute.dtype == torch.int8:
        raise UsageError("plain kernels do not support int8: use --kernels auto")
    if kernels == "auto" and compute.device.type == "cpu":
        return _cpu_inference(compute, notify)
    if kernels == "auto" and compute.device.type == "cuda" and compute.dtype != torch.float32:
        return GpuInference(compute.dtype)
    return PLAIN_INFERENCE


def chosen_arithmetic(inference: InferenceConfig) -> dict[str, str]:
    """Return the device, precision and kernels that inference has on this machine.

    Raises:
        UsageError: This machine does not support the settings.
    """
    compute = verified_compute(inference.device, inference.precision, notify=lambda _: None)
    backend = inference_backend(compute, inference.kernels, notify=lambda _: None)
    return {
        "device": compute.device.type,
        "precision": compute.precision,
        "kernels": "plain" if backend is PLAIN_INFERENCE else "fast",
    }


def _cpu_training(dtype: torch.dtype, notify: Callable[[str], None]) -> TrainingBackend:
    error = training_error(dtype)
    if error <= MAX_ERRORS[dtype]:
        return CpuTraining(dtype)
    notify(_wrong_products(dtype, error, fallback="with plain kernels"))
    return PLAIN_TRAINING


def _compiled_training(compute: Compute, notify: Callable[[str], None]) -> TrainingBackend:
    problem = compilation_problem(compute.device)
    if problem is not None:
        notify(
            f"warning: torch cannot compile on this machine ({problem}): training without, more "
            "slowly; install a C compiler, or set --no-compile"
        )
        return PLAIN_TRAINING
    if compute.dtype not in (torch.float16, torch.bfloat16):
        return CompiledTraining()
    problem = flash_problem(compute.device, compute.dtype)
    if problem is not None:
        notify(
            f"warning: flash attention does not work on this GPU ({problem}): training without, "
            "more slowly"
        )
    return CompiledTraining(flash=problem is None)


def _cpu_inference(compute: Compute, notify: Callable[[str], None]) -> InferenceBackend:
    dtype = compute.dtype
    if dtype in (torch.bfloat16, torch.int8):
        return CpuInference(
            inference_cpu.PREPACK[dtype],
            torch.float32 if dtype == torch.int8 else dtype,
            compaction_threshold=_NARROW_COMPACTION_THRESHOLD,
            limit_sizes=True,
        )
    if dtype != torch.float32:
        return PLAIN_INFERENCE
    error = inference_error(dtype)
    if error > MAX_ERRORS[dtype]:
        notify(_wrong_products(dtype, error, fallback="with plain kernels"))
        return PLAIN_INFERENCE
    return CpuInference(inference_cpu.PREPACK[dtype], dtype)
