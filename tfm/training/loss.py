"""Cross-entropy with label smoothing (Vaswani et al. 2017, §5.4)."""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tfm.data.batching import Batch

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
        smoothed, plain = (
            hidden.new_zeros((), dtype=precision),
            hidden.new_zeros((), dtype=precision),
        )
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


class TrainableModel(Protocol):
    """What training needs of a sequence-to-sequence model, which is a torch module too."""

    output_weight: nn.Parameter  # [V, d_model]

    def __call__(self, source: Tensor, lengths: Tensor, target_input: Tensor, /) -> Tensor:
        """Map [B, S] sources, [B] lengths and [B, T] target inputs to [B, T, d_model]."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters and their names, each once."""

    def train(self, mode: bool = True) -> object:
        """Switch dropout on or off."""


class PartLoss(nn.Module):
    """A model and its loss as one module, as torch needs it to share gradients.

    Args:
        model: A torch module.
        smoothing: ε of the label smoothing.
    """

    def __init__(self, model: TrainableModel, *, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self._smoothing = smoothing

    def forward(self, part: Batch) -> tuple[Tensor, Tensor]:
        """See `batch_loss`."""
        return batch_loss(self.model, part, smoothing=self._smoothing)


def batch_loss(model: TrainableModel, batch: Batch, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its target tokens.

    Args:
        model: Maps sources and target inputs to decoder outputs.
        batch: On the model's device.
        smoothing: ε of the label smoothing.
    """
    hidden = model(batch.source, batch.source_lengths, batch.target_input)
    columns = torch.arange(hidden.size(1), device=hidden.device)
    real = columns < batch.target_lengths[:, None]
    return label_smoothed_cross_entropy(
        hidden[real], model.output_weight, batch.target_output[real], smoothing=smoothing
    )


def perplexity(nll: float) -> float:
    """The perplexity of a mean negative log-likelihood in nats; huge ones are cut off."""
    return math.exp(min(nll, 100.0))
