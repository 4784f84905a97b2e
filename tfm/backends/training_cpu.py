"""The training backend of CPUs: forward and backward passes with few passes over memory."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.plain import TrainingBackend, cast_embeddings
from tfm.backends.sentence_attention import RandomMasks, SentenceHeads, keep_scale
from tfm.model.attention import FeedForward, MultiHeadAttention, Residual
from tfm.model.build import Model
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.projections import InputProjection
from tfm.model.transformer import Transformer


class CpuTraining(TrainingBackend):
    """Installs fused operations, packed attention and fast masks of dropout.

    Args:
        dtype: Dtype of activations and matrix products; weights and their gradients stay fp32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._masks = RandomMasks()

    @override
    def seed(self, seed: int) -> None:
        # torch.manual_seed also records the stack of its caller, for GPUs that are started later.
        torch.default_generator.manual_seed(seed)
        self._masks.seed(seed)

    @override
    def install(self, model: Model) -> None:
        if not isinstance(model, Transformer):  # torch computes the layers of others
            return
        cast_embeddings(model, self._dtype)
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.dropout = MaskedDropout(embedding.dropout, self._masks)
        for layer in (*model.encoder, *model.decoder):
            _install_layer(layer, self._masks)


def _install_layer(layer: EncoderLayer | DecoderLayer, masks: RandomMasks) -> None:
    for name, sublayer in list(layer.named_children()):
        if isinstance(sublayer, Residual):
            setattr(layer, name, MaskedResidual(sublayer, masks))
            continue
        dropout = getattr(layer, f"{name}_residual").dropout.p
        if isinstance(sublayer, MultiHeadAttention):
            sublayer.input = FusedProjection(sublayer.input)
            sublayer.heads = SentenceHeads(sublayer.heads, masks)
            sublayer.output = FusedLinear(sublayer.output, dropout=dropout)
        elif isinstance(sublayer, FeedForward):
            setattr(layer, name, FusedFeedForward(sublayer, masks, dropout=dropout))


class MaskedDropout(nn.Dropout):
    """Drops elements by masks that are faster to draw than torch's.

    Args:
        dropout: The module to replace.
        masks: Draws the masks.
    """

    def __init__(self, dropout: nn.Dropout, masks: RandomMasks) -> None:
        super().__init__(dropout.p)
        self._masks = masks

    @override
    def forward(self, x: Tensor) -> Tensor:
        return _dropped(x, self.p if self.training else 0.0, self._masks)


class FusedLinear(nn.Linear):
    """Casts its weight to the dtype of activations, and scales its output up for dropout.

    The residual connection that follows draws the mask of dropout: see `MaskedResidual`.

    Args:
        linear: The module to replace.
        dropout: Probability of dropping an element of the output later.
    """

    def __init__(self, linear: nn.Linear, *, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._dropout = dropout

    @override
    def forward(self, x: Tensor) -> Tensor:
        scale = keep_scale(self._dropout) if self.training else 1.0
        return fused_linear(x, self.weight, self.bias, scale=scale)


class FusedProjection(InputProjection):
    """Casts the weight of projections to the dtype of activations."""

    def __init__(self, projection: InputProjection) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight, self.bias = projection.weight, projection.bias
        self.part_widths = projection.part_widths

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused_linear(x, weight, bias)


class FusedFeedForward(FeedForward):
    """Fuses the first linear layer with ReLU and dropout; other activations follow it."""

    def __init__(self, feed_forward: FeedForward, masks: RandomMasks, *, dropout: float) -> None:
        nn.Module.__init__(self)
        self.inner = feed_forward.inner
        self.outer = FusedLinear(feed_forward.outer, dropout=dropout)
        self.activation, self.dropout = feed_forward.activation, feed_forward.dropout
        self._masks = masks

    @override
    def forward(self, x: Tensor) -> Tensor:
        dropout = self.dropout.p if self.training else 0.0
        weight, bias = self.inner.weight, self.inner.bias
        if self.activation is F.relu:
            hidden = fused_linear_relu_dropout(x, weight, bias, dropout, self._masks)
        else:
            activated = self.activation(fused_linear(x, weight, bias))
            hidden = _dropped(activated, dropout, self._masks)
        out: Tensor = self.outer(hidden)
        return out


class MaskedResidual(Residual):
    """Adds the output of a sub-layer with a dropout mask; the output is already scaled up."""

    def __init__(self, residual: Residual, masks: RandomMasks) -> None:
        nn.Module.__init__(self)
        self.norm, self.dropout = residual.norm, residual.dropout
        self.norm_first = residual.norm_first
        self._masks = masks

    @override
    def add(self, x: Tensor, out: Tensor) -> Tensor:
        dropout = self.dropout.p if self.training else 0.0
        return add_masked(x, out, dropout, self._masks)


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return scale · (x Wᵀ + b): […, in] → […, out], with the dtype of x."""
    return _apply(_Linear, x, weight, bias, scale)


def fused_linear_relu_dropout(
    x: Tensor, weight: Tensor, bias: Tensor, dropout: float, masks: RandomMasks
) -> Tensor:
    """Return dropout(max(0, x Wᵀ + b)): […, in] → […, out], with the dtype of x."""
    return _apply(_LinearReluDropout, x, weight, bias, dropout, masks)


def add_masked(residual: Tensor, out: Tensor, dropout: float, masks: RandomMasks) -> Tensor:
    """Drop elements of the scaled-up `out` […, d], and add the residual […, d]."""
    return _apply(_AddMasked, residual, out, dropout, masks)


def _dropped(x: Tensor, dropout: float, masks: RandomMasks) -> Tensor:
    """Drop elements of x […], and scale up the others."""
    return x * masks.draw(x, dropout).mul_(keep_scale(dropout)) if dropout else x


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    return cast("Tensor", function.apply(*args))  # type: ignore[no-untyped-call]


def _scale_and_cast(parameter: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Multiply a weight or bias by dropout's scale: it is smaller than the layer's output."""
    return (parameter if scale == 1.0 else parameter * scale).to(dtype)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x […, in], weight and bias, given the output's gradient.

    The output is x (scale · W)ᵀ + scale · b, and `weight` [out, in] is scale · W.
    """
    grad_rows, x_rows = grad.flatten(0, -2), x.flatten(0, -2)
    precision = torch.promote_types(grad.dtype, torch.float32)
    # The product is faster in the orientation whose result has fewer rows.
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
    if x.dtype == torch.bfloat16:
        activation = "relu" if relu else "none"
        return cast(
            "Tensor", torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
        )
    out = F.linear(x, weight, bias)
    return out.relu_() if relu else out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        weight = _scale_and_cast(weight, scale, x.dtype)
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, _scale_and_cast(bias, scale, x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return *_gradients(grad, x, weight, ctx.scale), None


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
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
        return *_gradients(grad, x, weight, ctx.scale), None, None


class _AddMasked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, out: Tensor, dropout: float, masks: RandomMasks
    ) -> Tensor:
        mask = masks.draw(out, dropout) if dropout else None
        ctx.save_for_backward(mask)
        return residual + out if mask is None else torch.addcmul(residual, out, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        [mask] = ctx.saved_tensors
        return grad, grad if mask is None else grad * mask, None, None
