"""Whether fast linear layers are right on this CPU: small ones, compared with float64.

They use operations of torch without a public name, which may change or go with a version.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.dropout import RandomMasks
from tfm.backends.inference_cpu import LARGE_WEIGHT, PREPACK
from tfm.backends.training_cpu import fused_linear, fused_linear_relu_dropout
from tfm.device.threads import one_thread

# The largest relative errors, by the Frobenius norm. Correct products stay below half of them.
MAX_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.int8: 4e-2}
_NUM_ROWS = 33
_WIDTH = 64
# Numbers of rows and outputs: few rows, or large weights, are multiplied by other operations. The
# largest number of rows is more than FBGEMM multiplies.
_SIZES = ((4, 48), (4, LARGE_WEIGHT // _WIDTH), (100, LARGE_WEIGHT // _WIDTH))


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
    product = x.double() @ weight.double().T
    return max(
        _relative_error(PREPACK[dtype](weight, None)(x, False), product),
        _relative_error(PREPACK[dtype](weight, bias)(x, True), (product + bias).relu()),
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
