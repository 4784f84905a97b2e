"""Output projection and label-smoothed cross-entropy in one (Vaswani et al. 2017, §5.4)."""

from typing import Any

import torch
from torch import Tensor

# Logits of this many elements at a time: they stay in cache and memory stays small.
_CHUNK_ELEMENTS = 1 << 22
_CHUNK_MULTIPLE = 64
_MIN_PROBABILITY = 1e-30


class _LinearCrossEntropy(torch.autograd.Function):
    """Output projection and loss in one, so that logits exist only a chunk at a time.

    Gradients are made in the forward pass, where the logits are at hand: that of a logit is p - q,
    where p is the model's probability and q the target's. But for the right class q is the same for
    all, so it needs no pass over the logits: the sum of the projection's rows tells what it adds to
    the loss and to the gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        targets: Tensor,
        num_tokens: int,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        needs_grad = any(ctx.needs_input_grad[:2])
        compute = hidden_states.dtype
        if torch.is_autocast_enabled(hidden_states.device.type):
            compute = torch.get_autocast_dtype(hidden_states.device.type)
        precision = torch.promote_types(hidden_states.dtype, torch.float32)
        other = smoothing / (len(weight) - 1)
        gold = 1.0 - smoothing - other  # beyond what it has as all others
        with torch.autocast(hidden_states.device.type, enabled=False):
            matrix = weight.to(compute)
            row_sum = matrix.sum(0, dtype=precision)
            smoothed, plain = (hidden_states.new_zeros((), dtype=precision) for _ in range(2))
            grad_hidden_states = torch.empty_like(hidden_states) if needs_grad else None
            grad_weight = torch.zeros_like(weight) if needs_grad else None
            num_chunks = -(-len(hidden_states) * len(weight) // _CHUNK_ELEMENTS)
            parts = _slices(len(hidden_states), num_chunks)
            # Memory that is taken anew for each chunk costs as much as filling it.
            buffers = [matrix.new_empty(parts[0].stop, len(weight)) for _ in range(2)]
            for part in parts:
                states, index = hidden_states[part].to(compute), targets[part, None]
                num_real = min(len(states), max(0, num_tokens - part.start))
                logits, probs = (buffer[: len(states)] for buffer in buffers)
                torch.mm(states, matrix.T, out=logits)
                if needs_grad:  # is rounded to the type of the products in any case
                    torch.softmax(logits, -1, out=probs)
                else:
                    probs = logits.softmax(-1, dtype=precision)
                gold_logits = logits.gather(1, index).to(precision)
                log_normalizer = _log_normalizer(logits, probs, index, gold_logits)
                nll = (log_normalizer - gold_logits)[:num_real]
                sums = (states.to(precision) @ row_sum)[:num_real]
                all_nll = len(weight) * log_normalizer[:num_real, 0] - sums
                smoothed += gold * nll.sum() + other * all_nll.sum()
                plain += nll.sum()
                if grad_hidden_states is None or grad_weight is None:
                    continue
                grad = probs
                grad[torch.arange(len(grad), device=grad.device), index[:, 0]] -= gold
                grad[num_real:] = 0
                part_grad = grad @ matrix
                part_grad[:num_real] -= other * row_sum.to(compute)
                grad_hidden_states[part] = part_grad
                grad_weight += (grad.T @ states).to(grad_weight.dtype)
                grad_weight -= other * states[:num_real].sum(0, dtype=precision)
        ctx.save_for_backward(grad_hidden_states, grad_weight)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_plain: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_states, grad_weight = ctx.saved_tensors
        return grad_hidden_states * grad_loss, grad_weight * grad_loss, None, None, None


def _slices(length: int, num_slices: int) -> list[slice]:
    """Slices of a length, alike but for the last: sizes that repeat are sooner prepared for."""
    size = -(-length // max(1, num_slices))
    size = -(-size // _CHUNK_MULTIPLE) * _CHUNK_MULTIPLE
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _log_normalizer(logits: Tensor, probs: Tensor, index: Tensor, gold_logits: Tensor) -> Tensor:
    """[N, 1] logarithm of the sum of all exponentiated logits.

    It is the difference between a logit and the logarithm of its probability, unless the
    probability is too small for a number.
    """
    gold_probs = probs.gather(1, index).to(gold_logits.dtype)
    if bool((gold_probs < _MIN_PROBABILITY).any()):
        return logits.to(gold_logits.dtype).logsumexp(-1, keepdim=True)
    return gold_logits - gold_probs.log()


def label_smoothed_cross_entropy(
    hidden_states: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    smoothing: float,
    num_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss against targets in which the right class has 1 - ε and the others share ε (§5.4).

    Args:
        hidden_states: [N, d_model] decoder outputs.
        weight: [V, d_model] output projection.
        targets: [N] right classes.
        smoothing: ε.
        num_tokens: Rows that count, the first ones; all if not given.

    Returns:
        The smoothed loss and the plain negative log-likelihood, each summed over N, in nats.
    """
    if not torch.is_grad_enabled():  # which a Function is not told
        hidden_states, weight = hidden_states.detach(), weight.detach()
    if num_tokens is None:
        num_tokens = len(hidden_states)
    smoothed, plain = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_states, weight, targets, num_tokens, smoothing
    )
    return smoothed, plain
