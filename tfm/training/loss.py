"""Cross-entropy with label smoothing (Vaswani et al. 2017, §5.4)."""

from typing import Any

import torch
from torch import Tensor

# Logits of this many elements at a time: they stay in cache and memory stays small.
_CHUNK_ELEMENTS = 1 << 22


class _LinearCrossEntropy(torch.autograd.Function):
    """Output projection and loss in one, so that logits exist only a chunk at a time.

    Gradients are made in the forward pass, where the logits are at hand.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        vocab_size = len(weight)
        other = smoothing / (vocab_size - 1)
        gold = 1.0 - smoothing
        needs_grad = any(ctx.needs_input_grad[:2])
        compute = hidden.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            compute = torch.get_autocast_dtype(hidden.device.type)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        matrix = weight.to(compute)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        smoothed, plain = hidden.new_zeros(2, dtype=precision).unbind()
        rows = max(1, _CHUNK_ELEMENTS // vocab_size)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                states = hidden[part].to(compute)
                index = targets[part, None]
                log_probs = torch.log_softmax((states @ matrix.T).to(precision), dim=-1)
                gold_log_probs = log_probs.gather(1, index)
                gold_sum = gold_log_probs.sum()
                smoothed -= (gold - other) * gold_sum + other * log_probs.sum()
                plain -= gold_sum
                if grad_hidden is not None and grad_weight is not None:
                    grad = log_probs.exp_().sub_(other)
                    grad.scatter_add_(
                        1, index, grad.new_full((1, 1), other - gold).expand_as(index)
                    )
                    grad = grad.to(compute)
                    grad_hidden[part] = grad @ matrix
                    grad_weight += grad.T @ states
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(
        ctx: Any, grad_loss: Tensor, _grad_plain: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None


def label_smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Loss against targets in which the right class has 1 - ε and the others share ε (§5.4).

    Args:
        hidden: [N, d_model] decoder outputs.
        weight: [V, d_model] output projection.
        targets: [N] right classes.
        smoothing: ε.

    Returns:
        The smoothed loss and the plain negative log-likelihood, each summed over N, in nats.
    """
    if not torch.is_grad_enabled():  # which a Function is not told
        hidden, weight = hidden.detach(), weight.detach()
    smoothed, plain = _LinearCrossEntropy.apply(hidden, weight, targets, smoothing)  # type: ignore[no-untyped-call]
    return smoothed, plain
