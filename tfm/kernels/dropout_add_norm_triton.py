# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The kernels of `tfm.kernels.dropout_add_norm`: each tensor is read once and written once."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tfm.kernels.philox import checked_seed, drop_below, keep_scale
from tfm.kernels.philox_triton import kept

# Elements of a tile of whole rows.
_TILE_ELEMENTS = 2048
# Programs of the backward pass, each with sums of its own for the gradients of weight and bias.
_NUM_SUMS = 512
_LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}


def dropout_add_norm(
    residual: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum x + Dropout(y) and its layer normalisation, whose statistics are fp32.

    Args:
        residual: [N, d_model] x.
        branch: [N, d_model] y, what a sub-layer made.
        weight: [d_model] of the normalisation.
        bias: [d_model] of the normalisation.
        eps: Added to the variance.
        dropout: Probability of dropping an element of y.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, d_model] the sum and [N, d_model] its normalisation, of x's dtype.

    Raises:
        ValueError: Dropout without a seed.
    """
    if dropout > 0.0:
        seed = checked_seed(seed)
    total, normed, *_ = _add_norm(
        residual.contiguous(), branch.contiguous(), weight, bias, seed, eps, dropout
    )
    return total, normed


@torch.library.custom_op("tfm::dropout_add_norm", mutates_args=())
def _add_norm(
    residual: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    eps: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, its normalisation, and [N] fp32 means and inverse deviations of its rows."""
    total, normed = torch.empty_like(residual), torch.empty_like(residual)
    means = residual.new_empty(len(residual), dtype=torch.float32)
    inverses = torch.empty_like(means)
    constants = _constants(residual, dropout)
    _forward[(triton.cdiv(len(residual), constants["num_rows"]),)](
        residual, branch, weight, bias, total, normed, means, inverses, seed, len(residual),
        eps=eps, **constants,
    )  # fmt: skip
    return total, normed, means, inverses


@torch.library.custom_op("tfm::dropout_add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_total: Tensor | None,
    grad_normed: Tensor,
    total: Tensor,
    means: Tensor,
    inverses: Tensor,
    branch: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of residual, branch, weight and bias."""
    grad_residual, grad_branch = torch.empty_like(total), torch.empty_like(branch)
    constants = _constants(total, dropout)
    num_sums = min(_NUM_SUMS, triton.cdiv(len(total), constants["num_rows"]))
    sums = total.new_empty(2, num_sums, total.size(1), dtype=torch.float32)
    _backward[(num_sums,)](
        None if grad_total is None else grad_total.contiguous(), grad_normed.contiguous(),
        total, means, inverses, weight, grad_residual, grad_branch, sums, seed, len(total),
        num_sums=num_sums, **constants,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(dim=1).to(weight.dtype)
    return grad_residual, grad_branch, grad_weight.clone(), grad_bias.clone()


@_add_norm.register_fake
def _(residual: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    numbers = [residual.new_empty(len(residual), dtype=torch.float32) for _ in range(2)]
    return torch.empty_like(residual), torch.empty_like(residual), *numbers


@_add_norm_backward.register_fake
def _(
    grad_total: Tensor | None,
    grad_normed: Tensor,
    total: Tensor,
    means: Tensor,
    inverses: Tensor,
    branch: Tensor,
    weight: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x) for x in (total, branch, weight, weight))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _residual, branch, weight, _bias, seed, _eps, ctx.dropout = inputs
    total, _normed, means, inverses = output
    ctx.save_for_backward(total, means, inverses, branch, weight, seed)
    ctx.set_materialize_grads(False)  # post-norm has none for the sum


def _gradients(
    ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None, *_rest: None
) -> tuple[Tensor | None, ...]:
    if grad_normed is None:
        grad_normed = torch.zeros_like(ctx.saved_tensors[0])
    gradients = _add_norm_backward(grad_total, grad_normed, *ctx.saved_tensors, ctx.dropout)
    return *gradients, None, None, None


_add_norm.register_autograd(_gradients, setup_context=_save)


def _constants(rows: Tensor, dropout: float) -> dict[str, Any]:
    """What a kernel is compiled for."""
    block = max(8, triton.next_power_of_2(rows.size(1)))
    return {
        "d_model": rows.size(1),
        "block": block,
        "num_rows": max(1, _TILE_ELEMENTS // block),
        "threshold": drop_below(dropout),
        "keep_scale": keep_scale(dropout),
        **_LAUNCH,
    }


@triton.jit
def _forward(
    residual: tl.tensor, branch: tl.tensor, weight: tl.tensor, bias: tl.tensor,
    total: tl.tensor, normed: tl.tensor, means: tl.tensor, inverses: tl.tensor, seed: tl.tensor,
    end: tl.tensor, eps: tl.constexpr, d_model: tl.constexpr, block: tl.constexpr,
    num_rows: tl.constexpr, threshold: tl.constexpr, keep_scale: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of rows."""
    rows = tl.program_id(0) * num_rows + tl.arange(0, num_rows)
    columns = tl.arange(0, block)
    places, inside = _places(rows, columns, end, d_model)
    x = tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(branch + places, mask=inside, other=0.0).to(tl.float32)
    if threshold > 0:
        y = tl.where(kept(seed, 0, rows, 0, block, threshold), y * keep_scale, 0.0)
    # Rounded as it is stored: the backward pass has nothing else.
    x = (x + y).to(total.dtype.element_ty)
    tl.store(total + places, x, mask=inside)
    x = x.to(tl.float32)
    mean = tl.sum(x, axis=1) / d_model
    centred = tl.where(inside, x - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / d_model + eps)
    tl.store(means + rows, mean, mask=rows < end)
    tl.store(inverses + rows, inverse, mask=rows < end)
    w, b = _vector(weight, columns, d_model), _vector(bias, columns, d_model)
    result = centred * inverse[:, None] * w + b
    tl.store(normed + places, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad_total: tl.tensor, grad_normed: tl.tensor, total: tl.tensor, means: tl.tensor,
    inverses: tl.tensor, weight: tl.tensor, grad_residual: tl.tensor, grad_branch: tl.tensor,
    sums: tl.tensor, seed: tl.tensor, end: tl.tensor, num_sums: tl.constexpr,
    d_model: tl.constexpr, block: tl.constexpr, num_rows: tl.constexpr,
    threshold: tl.constexpr, keep_scale: tl.constexpr,
) -> None:  # fmt: skip
    """Every so many tiles of rows, and their share of the gradients of weight and bias."""
    columns = tl.arange(0, block)
    w = _vector(weight, columns, d_model)
    d_weight = tl.zeros((num_rows, block), tl.float32)
    d_bias = tl.zeros((num_rows, block), tl.float32)
    first = tl.program_id(0) * num_rows
    for start in range(first, end, num_sums * num_rows):
        rows = start + tl.arange(0, num_rows)
        places, inside = _places(rows, columns, end, d_model)
        x = tl.load(total + places, mask=inside, other=0.0).to(tl.float32)
        d_normed = tl.load(grad_normed + places, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(means + rows, mask=rows < end, other=0.0)
        inverse = tl.load(inverses + rows, mask=rows < end, other=0.0)
        x = tl.where(inside, (x - mean[:, None]) * inverse[:, None], 0.0)
        d_weight += d_normed * x
        d_bias += d_normed
        d_x = d_normed * w
        along_one = tl.sum(d_x, axis=1) / d_model
        along_x = tl.sum(d_x * x, axis=1) / d_model
        d_x = (d_x - along_one[:, None] - x * along_x[:, None]) * inverse[:, None]
        if grad_total is not None:
            d_x += tl.load(grad_total + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_residual + places, d_x.to(grad_residual.dtype.element_ty), mask=inside)
        if threshold > 0:
            d_x = tl.where(kept(seed, 0, rows, 0, block, threshold), d_x * keep_scale, 0.0)
        tl.store(grad_branch + places, d_x.to(grad_branch.dtype.element_ty), mask=inside)
    share = sums + tl.program_id(0) * d_model + columns
    tl.store(share, tl.sum(d_weight, axis=0), mask=columns < d_model)
    tl.store(share + num_sums * d_model, tl.sum(d_bias, axis=0), mask=columns < d_model)


@triton.jit
def _places(
    rows: tl.tensor, columns: tl.tensor, end: tl.tensor, d_model: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """[rows, columns] where their elements lie, and which of them exist."""
    places = rows.to(tl.int64)[:, None] * d_model + columns[None, :]
    return places, (rows < end)[:, None] & (columns < d_model)[None, :]


@triton.jit
def _vector(pointer: tl.tensor, columns: tl.tensor, d_model: tl.constexpr) -> tl.tensor:
    """[1, columns] fp32 of a vector as wide as the model."""
    return tl.load(pointer + columns, mask=columns < d_model, other=0.0).to(tl.float32)[None, :]
