"""Whether fast matrix products are right on this CPU: small ones, compared with float64."""

from functools import cache

import torch
from torch import Tensor

from tfm.backends.cpu import CpuBackend
from tfm.backends.cpu_inference import PREPACK

# The largest relative errors, by the Frobenius norm. Correct products stay below half of them.
MAX_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.int8: 4e-2}
# prepack_fp32 has a kernel of its own for the first number of rows, but not for the second.
_NUM_ROWS = (4, 33)
_WIDTH, _NUM_OUTPUTS = 64, 48


@cache
def inference_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of prepacked linear layers; infinity if a product fails.

    Some operands have both signs. Others are all large and positive, so that sums overflow if a
    CPU adds 8-bit products in 16 bits.
    """
    generator = torch.Generator().manual_seed(0)
    errors = []
    for num_rows in _NUM_ROWS:
        x = torch.randn(num_rows, _WIDTH, generator=generator)
        weight = torch.randn(_NUM_OUTPUTS, _WIDTH, generator=generator)
        for a, b in ((x, weight), (1 + x.sigmoid(), 1 + weight.sigmoid())):
            try:
                with torch.inference_mode():
                    result = PREPACK[dtype](b, None)(a, False)
            except RuntimeError:
                return torch.inf
            errors.append(_relative_error(result, a.double() @ b.double().T))
    return max(errors)


@cache
def training_error(dtype: torch.dtype) -> float:
    """Return the largest relative error of a linear layer and its gradients, or infinity."""
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
            results = (out, *torch.autograd.grad(out, leaves, grad))
    except RuntimeError:
        return torch.inf
    return max(map(_relative_error, results, exact))


def _relative_error(result: Tensor, exact: Tensor) -> float:
    error = float((result.detach().double() - exact).norm() / exact.norm())
    return error if error == error else torch.inf  # NaN is wrong, too
