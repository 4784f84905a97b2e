"""Choose the backend and the arithmetic that suit a device, and are right on it.

Fast linear layers use operations of torch without a public name, which may change or go with a
version: small layers are compared with float64.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends import products_cpu
from tfm.backends.inference_cpu import CpuInference
from tfm.backends.inference_gpu import GpuInference
from tfm.backends.plain import (
    PLAIN_INFERENCE,
    PLAIN_TRAINING,
    InferenceBackend,
    TrainingBackend,
)
from tfm.backends.sentence_attention import RandomMasks
from tfm.backends.training_compiled import CompiledTraining, compilation_problem, working_kernel
from tfm.backends.training_cpu import CpuTraining, fused_linear, fused_linear_relu_dropout
from tfm.config import InferenceConfig, InferenceDevice, InferencePrecision, Kernels
from tfm.errors import UsageError
from tfm.machine.compute import Compute, choose_compute, one_thread
from tfm.machine.cpu import this_cpu
from tfm.reporting import say

# The largest relative errors, by the Frobenius norm. Correct products stay below half of them.
MAX_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.int8: 4e-2}
_NUM_ROWS = 33
_WIDTH = 64
# Numbers of rows and outputs: few rows, or large weights, are multiplied by other operations. The
# largest number of rows is more than FBGEMM multiplies.
_LARGE_OUTPUT = products_cpu.LARGE_WEIGHT // _WIDTH
_SIZES = ((4, 48), (4, _LARGE_OUTPUT), (100, _LARGE_OUTPUT))


@cache
def inference_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of prepacked linear layers; infinity if a product fails.

    Some operands have both signs. Others are all large and positive, so that sums overflow if a
    CPU adds 8-bit products in 16 bits.
    """
    generator = torch.Generator().manual_seed(0)
    operands = []
    for num_rows, num_outputs in _SIZES:
        x = torch.randn(num_rows, _WIDTH, generator=generator)
        weight = torch.randn(num_outputs, _WIDTH, generator=generator)
        bias = torch.randn(num_outputs, generator=generator)
        operands += [(x, weight, bias), (1 + x.sigmoid(), 1 + weight.sigmoid(), bias)]
    try:
        with torch.inference_mode():
            errors = [_linear_error(dtype, *each) for each in operands]
            with one_thread():  # as worker processes, which may use other operations
                errors += [_linear_error(dtype, *each) for each in operands]
            return max(errors)
    except (RuntimeError, AttributeError):
        return torch.inf


def _linear_error(dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Return the larger error of a projection and of a linear layer with bias and ReLU."""
    product, prepack = x.double() @ weight.double().T, products_cpu.PREPACK[dtype]
    return max(
        _relative_error(prepack(weight, None)(x, False), product),
        _relative_error(prepack(weight, bias)(x, True), (product + bias).relu()),
    )


@cache
def training_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of linear layers and their gradients, or infinity."""
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, _NUM_ROWS, _WIDTH, generator=generator).to(dtype)
    # Without the error of rounding weights, ReLU zeroes the same elements in every precision.
    weight = torch.randn(_WIDTH, _WIDTH, generator=generator).to(dtype).float()
    bias = torch.randn(_WIDTH, generator=generator).to(dtype).float()
    inputs = (x, grad, weight, bias)
    try:
        results = _results_of_training(_fused_layers, *inputs)
    except (RuntimeError, AttributeError):
        return torch.inf
    exact = _results_of_training(_plain_layers, *(each.double() for each in inputs))
    return max(map(_relative_error, results, exact))


def _fused_layers(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    with_relu = fused_linear_relu_dropout(x, weight, bias, 0.0, RandomMasks())
    return [fused_linear(x, weight, bias), with_relu]


def _plain_layers(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    out = F.linear(x, weight, bias)
    return [out, out.relu()]


def _results_of_training(
    layers: Callable[[Tensor, Tensor, Tensor], list[Tensor]],
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> list[Tensor]:
    """Return the outputs and gradients of linear layers without and with ReLU."""
    results = []
    with torch.inference_mode(False), torch.enable_grad():
        x, weight, bias = leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
        for out in layers(x, weight, bias):
            gradients = torch.autograd.grad(out, leaves, grad, retain_graph=True)
            results += [out.detach(), *gradients]
    return results


def _relative_error(result: Tensor, exact: Tensor) -> float:
    error = float((result.double() - exact).norm() / exact.norm())
    return error if error == error else torch.inf  # NaN is wrong, too


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
        if not products_cpu.HAS_INT8:
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
    """Choose the backend for inference; `notify` receives warnings."""
    if kernels == "plain" and compute.dtype == torch.int8:
        raise UsageError("plain kernels do not support int8: use --kernels auto")
    if kernels == "auto" and compute.device.type == "cpu":
        return _cpu_inference(compute, notify)
    if kernels == "auto" and compute.device.type == "cuda" and compute.dtype != torch.float32:
        return GpuInference(compute.dtype)
    return PLAIN_INFERENCE


def chosen_arithmetic(inference: InferenceConfig) -> dict[str, str]:
    """Return the device, precision and kernels that inference has on this machine."""
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
    kernel, problem = working_kernel(compute.device, compute.dtype)
    if kernel is None:
        notify(
            f"warning: torch's kernels for attention do not work on this GPU ({problem}): training "
            "with padded batches, more slowly"
        )
    return CompiledTraining(kernel)


def _cpu_inference(compute: Compute, notify: Callable[[str], None]) -> InferenceBackend:
    dtype = compute.dtype
    if dtype in (torch.bfloat16, torch.int8):
        return CpuInference(
            products_cpu.PREPACK[dtype],
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
    return CpuInference(products_cpu.PREPACK[dtype], dtype)
