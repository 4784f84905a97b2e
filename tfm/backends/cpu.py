"""The operations of a model's layers as a CPU does them fastest, forward and backward."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.plain import Backend
from tfm.backends.random_masks import RandomMasks, kept_scale
from tfm.backends.sentence_attention import SentenceAttention

# oneDNN's own operation; torch offers no other way to it.
_FUSED_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class CpuBackend(Backend):
    """See `Backend`: fused where that saves passes over memory, with fast draws of dropout.

    Args:
        dtype: Of activations and matrix products; weights and their gradients stay fp32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._masks = RandomMasks()
        self.packed_attention = SentenceAttention(self._masks)

    def seed(self, seed: int) -> None:
        """See `Backend`."""
        torch.manual_seed(seed)
        self._masks.seed(seed)

    def cast_activations(self, x: Tensor) -> Tensor:
        """See `Backend`."""
        return x.to(self._dtype)

    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        """See `Backend`."""
        return x if not dropout else x * self._masks.draw(x, dropout).mul_(kept_scale(dropout))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `Backend`."""
        out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out

    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """See `Backend`."""
        out: Tensor = _LinearReluDropout.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, dropout, self._masks
        )
        return out

    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """See `Backend`."""
        out: Tensor = _AddLinearDropout.apply(  # type: ignore[no-untyped-call]
            residual, x, weight, bias, dropout, self._masks
        )
        return out


def _scaled(parameter: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Fold a scale into a weight or bias: they are smaller than what they make."""
    return (parameter if scale == 1.0 else parameter * scale).to(dtype)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, of the weight and of the bias, where grad is that of x (scale · W)ᵀ + scale · b.

    Args:
        grad: […, out].
        x: […, in].
        weight: [out, in] times the scale.
        scale: What weight and bias were multiplied by.
    """
    rows = grad.flatten(0, -2)
    precision = torch.promote_types(grad.dtype, torch.float32)
    given = x.flatten(0, -2)
    # The product with fewer rows is the faster one.
    narrow = rows.size(-1) <= given.size(-1)
    product = rows.mT @ given if narrow else (given.mT @ rows).mT
    grad_weight = product.to(precision)
    grad_bias = rows.sum(0).to(precision)
    if scale != 1.0:
        grad_weight.mul_(scale)
        grad_bias.mul_(scale)
    return grad @ weight, grad_weight, grad_bias


def _linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """X Wᵀ + b, and what is below zero cut off.

    In bf16 it is a single pass; F.linear first fills its result with the bias.
    """
    if x.dtype == torch.bfloat16 and _FUSED_LINEAR is not None:
        activation = "relu" if relu else "none"
        return cast("Tensor", _FUSED_LINEAR(x, weight, bias, activation, [], ""))
    plain = F.linear(x, weight, bias)
    return plain.relu_() if relu else plain


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        matrix = weight.to(x.dtype)
        ctx.save_for_backward(x, matrix)
        return _linear(x, matrix, bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, matrix = ctx.saved_tensors
        return _gradients(grad, x, matrix, 1.0)


class _LinearReluDropout(torch.autograd.Function):
    """What is dropped is zero, as what ReLU cuts off, so the output tells where gradients pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dropout: float, masks: RandomMasks
    ) -> Tensor:
        ctx.scale = kept_scale(dropout)
        matrix = _scaled(weight, ctx.scale, x.dtype)
        out = _linear(x, matrix, _scaled(bias, ctx.scale, x.dtype), relu=True)
        if dropout:
            out.mul_(masks.draw(out, dropout))
        ctx.save_for_backward(x, matrix, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, out = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(grad, out, 0)
        return *_gradients(passed, x, matrix, ctx.scale), None, None


class _AddLinearDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        dropout: float,
        masks: RandomMasks,
    ) -> Tensor:
        ctx.scale = kept_scale(dropout)
        matrix = _scaled(weight, ctx.scale, x.dtype)
        out = _linear(x, matrix, _scaled(bias, ctx.scale, x.dtype))
        mask = masks.draw(out, dropout) if dropout else None
        ctx.save_for_backward(x, matrix, mask)
        return out.add_(residual) if mask is None else torch.addcmul(residual, out, mask, out=out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, mask = ctx.saved_tensors
        kept = grad if mask is None else grad * mask
        return grad, *_gradients(kept, x, matrix, ctx.scale), None, None
