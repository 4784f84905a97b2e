"""Whether fast products are right on this CPU: small ones, compared with float64."""

from functools import cache

import torch
from torch import Tensor

from tfm.backends.cpu import CpuBackend
from tfm.backends.cpu_inference import PREPACK, Prepack

# The largest relative errors, by the Frobenius norm. Sound products stay below half of them.
MAX_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.int8: 4e-2}
# The first number of rows has a prepacked fp32 kernel, the second has none.
_NUM_ROWS = (4, 33)
_WIDTH, _NUM_OUTPUTS = 64, 48


@cache
def inference_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of products as inference computes them on this CPU.

    Some have terms of both signs. In others all are large and positive, so that their sums overflow
    where a CPU adds 8-bit products up in 16 bits.

    Args:
        dtype: Their arithmetic.

    Returns:
        The error; infinity if they cannot be computed.
    """
    prepare = PREPACK[dtype]
    generator = torch.Generator().manual_seed(0)
    errors = []
    for num_rows in _NUM_ROWS:
        x = torch.randn(num_rows, _WIDTH, generator=generator)
        weight = torch.randn(_NUM_OUTPUTS, _WIDTH, generator=generator)
        for each_x, each_weight in ((x, weight), (1 + x.sigmoid(), 1 + weight.sigmoid())):
            exact = each_x.double() @ each_weight.double().T
            errors.append(_product_error(prepare, each_x, each_weight, exact))
    return max(errors)


@cache
def training_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of a linear layer and its gradients on this CPU.

    Args:
        dtype: The arithmetic.

    Returns:
        The error; infinity if they cannot be computed.
    """
    backend = CpuBackend(dtype)
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, _NUM_ROWS[-1], _WIDTH, generator=generator)
    weight = torch.randn(_WIDTH, _WIDTH, generator=generator)
    x, grad = x.to(dtype), grad.to(dtype)
    exact = (
        x.double() @ weight.double().T,
        grad.double() @ weight.double(),
        grad.double().T @ x.double(),
    )
    leaves = x.requires_grad_(), weight.requires_grad_()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            out = backend.linear(leaves[0], leaves[1], torch.zeros(_WIDTH))
            found = (out, *torch.autograd.grad(out, leaves, grad))
    except RuntimeError:
        return torch.inf
    return max(map(_relative_error, found, exact))


def _product_error(prepare: Prepack, x: Tensor, weight: Tensor, exact: Tensor) -> float:
    try:
        with torch.inference_mode():
            found = prepare(weight, None)(x, False)
    except RuntimeError:
        return torch.inf
    return _relative_error(found, exact)


def _relative_error(found: Tensor, exact: Tensor) -> float:
    error = float((found.detach().double() - exact).norm() / exact.norm())
    return error if error == error else torch.inf  # NaN, too, is wrong
