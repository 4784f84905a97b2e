"""The operations of a model's layers, and its loss, as a GPU does them fastest.

To be imported only where `tfm.backends.has_triton`.
"""

from typing import Any

import torch
from torch import Tensor

from tfm.backends.packing import Packing
from tfm.backends.plain import Backend
from tfm.backends.triton.cross_entropy import PADDING, cross_entropy_
from tfm.backends.triton.packed_attention import packed_cross_attention, packed_self_attention

# Logits of this many elements at a time, in bf16 half a gigabyte: enough to keep a GPU busy.
_CHUNK_ELEMENTS = 1 << 28
# Seeds that are drawn at once: more than a step of the paper's models takes.
_NUM_SEEDS = 64


class GpuBackend(Backend):
    """Train on a GPU: attention and loss by Triton kernels, everything else by torch.

    Matrix products, and what is made of them, are in the arithmetic that autocast says; weights,
    their gradients and sums are fp32.
    """

    def __init__(self) -> None:
        self._seeds = Seeds()
        self.packed_attention = FusedAttention(self._seeds)

    def seed(self, seed: int) -> None:
        """See `Backend`."""
        torch.manual_seed(seed)
        self._seeds.forget()

    def cast_activations(self, x: Tensor) -> Tensor:
        """See `Backend`."""
        return x.to(_arithmetic(x))

    def label_smoothed_cross_entropy(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        targets: Tensor,
        *,
        smoothing: float,
        num_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        if not torch.is_grad_enabled():  # which a Function is not told
            hidden_states, weight = hidden_states.detach(), weight.detach()
        smoothed, plain = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_states, weight, targets, num_tokens, smoothing
        )
        return smoothed, plain


class FusedAttention:
    """See `PackedAttention`: whatever the lengths of sentences, one kernel, and two backward.

    Args:
        seeds: Of dropout.
    """

    def __init__(self, seeds: "Seeds") -> None:
        self._seeds = seeds

    def self_attention(
        self, projected: Tensor, packing: Packing, *, num_heads: int, causal: bool, dropout: float
    ) -> Tensor:
        """See `PackedAttention`."""
        attended = packed_self_attention(
            projected.view(packing.num_rows, 3, num_heads, -1),
            packing.spans(packing, causal=causal),
            dropout=dropout,
            seed=self._seeds.draw(projected.device) if dropout else None,
        )
        return attended.flatten(1)

    def cross_attention(
        self,
        query: Tensor,
        key_value: Tensor,
        queries: Packing,
        keys: Packing,
        *,
        num_heads: int,
        dropout: float,
    ) -> Tensor:
        """See `PackedAttention`."""
        attended = packed_cross_attention(
            query.view(queries.num_rows, num_heads, -1),
            key_value.view(keys.num_rows, 2, num_heads, -1),
            queries.spans(keys),
            dropout=dropout,
            seed=self._seeds.draw(query.device) if dropout else None,
        )
        return attended.flatten(1)


class Seeds:
    """A seed for each use of dropout in a kernel: drawn on the device, which nobody waits for."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Draw anew from torch's generator, which was seeded."""
        self._drawn: list[Tensor] = []

    def draw(self, device: torch.device) -> Tensor:
        """[1] int64, another one each time.

        Args:
            device: Where all draws since `forget` are made.
        """
        if not self._drawn:
            # Two side by side, of which one is used: 16 bytes apart, all suit one compiled kernel.
            drawn = torch.empty(_NUM_SEEDS, 2, dtype=torch.int64, device=device).random_()
            self._drawn = list(drawn[:, :1].unbind(0))
        return self._drawn.pop()


def _arithmetic(x: Tensor) -> torch.dtype:
    """Of matrix products."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _LinearCrossEntropy(torch.autograd.Function):
    """Output projection and loss in one: the gradient of logits takes their place at once."""

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
        compute = _arithmetic(hidden_states)
        targets = targets.clone()
        targets[num_tokens:] = PADDING
        grad_hidden_states = torch.empty_like(hidden_states) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        matrix = weight.to(compute)
        sums = hidden_states.new_zeros(2, dtype=torch.float32)
        num_rows = max(1, _CHUNK_ELEMENTS // len(weight))
        buffer = matrix.new_empty(min(num_rows, len(hidden_states)), len(weight))
        for start in range(0, len(hidden_states), num_rows):
            part = slice(start, start + num_rows)
            states = hidden_states[part].to(compute)
            logits = torch.mm(states, matrix.T, out=buffer[: len(states)])
            losses = cross_entropy_(logits, targets[part], smoothing=smoothing)
            sums += torch.stack(losses).sum(1)
            if grad_hidden_states is not None and grad_weight is not None:
                grad_hidden_states[part] = logits @ matrix
                grad_weight += logits.T @ states
        smoothed, plain = sums
        ctx.save_for_backward(grad_hidden_states, grad_weight)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_plain: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_states, grad_weight = ctx.saved_tensors
        return grad_hidden_states * grad_loss, grad_weight * grad_loss, None, None, None
