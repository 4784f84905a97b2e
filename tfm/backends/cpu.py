"""The training backend of CPUs: forward and backward passes with few passes over memory."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from tfm.backends.dropout import RandomMasks, keep_scale
from tfm.backends.plain import Backend
from tfm.backends.sentence_attention import SentenceAttention

# Operations without a public name: a version or build of torch may lack them.
_ONEDNN_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_RELU_BACKWARD: Any = getattr(torch.ops.aten, "threshold_backward", None)


class CpuBackend(Backend):
    """Fused operations, packed attention and fast masks of dropout.

    Args:
        dtype: Dtype of activations and matrix products; weights and their gradients stay fp32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._masks = RandomMasks()
        self.packed_attention = SentenceAttention(self._masks)

    @override
    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._masks.seed(seed)

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(self._dtype)

    @override
    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        return x if not dropout else x * self._masks.draw(x, dropout).mul_(keep_scale(dropout))

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _apply(_Linear, x, weight, bias)

    @override
    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        return _apply(_LinearReluDropout, x, weight, bias, dropout, self._masks)

    @override
    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        return _apply(_AddLinearDropout, residual, x, weight, bias, dropout, self._masks)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    return cast("Tensor", function.apply(*args))  # type: ignore[no-untyped-call]


def _scale_and_cast(parameter: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Multiply a weight or bias by dropout's scale: it is smaller than the layer's output."""
    return (parameter if scale == 1.0 else parameter * scale).to(dtype)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x […, in], weight and bias, given that of x (scale · W)ᵀ + scale · b.

    `weight` [out, in] is the scaled one.
    """
    grad_rows, x_rows = grad.flatten(0, -2), x.flatten(0, -2)
    precision = torch.promote_types(grad.dtype, torch.float32)
    # The product whose result has fewer rows is the faster one.
    narrow = grad_rows.size(-1) <= x_rows.size(-1)
    product = grad_rows.mT @ x_rows if narrow else (x_rows.mT @ grad_rows).mT
    grad_weight = product.to(precision)
    grad_bias = grad_rows.sum(0).to(precision)
    if scale != 1.0:
        grad_weight.mul_(scale)
        grad_bias.mul_(scale)
    return grad @ weight, grad_weight, grad_bias


def _linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """Return x Wᵀ + b, followed by ReLU if `relu`; in bf16 in a single pass.

    F.linear in bf16 first fills its result with the bias.
    """
    if x.dtype == torch.bfloat16 and _ONEDNN_LINEAR is not None:
        activation = "relu" if relu else "none"
        return cast("Tensor", _ONEDNN_LINEAR(x, weight, bias, activation, [], ""))
    out = F.linear(x, weight, bias)
    return out.relu_() if relu else out


def _relu_backward(grad: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of a ReLU's input, given that of its output."""
    if _RELU_BACKWARD is None:
        return torch.where(out > 0, grad, 0)
    return cast("Tensor", _RELU_BACKWARD(grad, out, 0))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _gradients(grad, x, weight, 1.0)


class _LinearReluDropout(torch.autograd.Function):
    """Needs no saved mask: gradients pass where neither ReLU nor dropout zeroed the output."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dropout: float, masks: RandomMasks
    ) -> Tensor:
        ctx.scale = keep_scale(dropout)
        weight = _scale_and_cast(weight, ctx.scale, x.dtype)
        out = _linear(x, weight, _scale_and_cast(bias, ctx.scale, x.dtype), relu=True)
        if dropout:
            out.mul_(masks.draw(out, dropout))
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grad = _relu_backward(grad, out)
        return *_gradients(grad, x, weight, ctx.scale), None, None


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
        ctx.scale = keep_scale(dropout)
        weight = _scale_and_cast(weight, ctx.scale, x.dtype)
        out = _linear(x, weight, _scale_and_cast(bias, ctx.scale, x.dtype))
        mask = masks.draw(out, dropout) if dropout else None
        ctx.save_for_backward(x, weight, mask)
        return out.add_(residual) if mask is None else torch.addcmul(residual, out, mask, out=out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask = ctx.saved_tensors
        masked_grad = grad if mask is None else grad * mask
        return grad, *_gradients(masked_grad, x, weight, ctx.scale), None, None
