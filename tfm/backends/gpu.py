"""The training backend of GPUs; import it only if `tfm.backends.has_triton`."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from tfm.backends.cross_entropy import autocast_dtype
from tfm.backends.packing import Packing
from tfm.backends.plain import Backend, PackedAttention
from tfm.backends.triton.cross_entropy import PADDING, cross_entropy_
from tfm.backends.triton.packed_attention import packed_cross_attention, packed_self_attention

# Logits per chunk: half a gigabyte in bf16, enough to keep a GPU busy.
_CHUNK_ELEMENTS = 1 << 28
# Seeds per draw: more than a step of the paper's models needs.
_NUM_SEEDS = 64


class GpuBackend(Backend):
    """Attention and loss by Triton kernels, everything else by torch.

    Autocast decides the dtype of matrix products and of their results; weights, their gradients
    and sums are fp32.
    """

    def __init__(self) -> None:
        self._seeds = Seeds()
        self.packed_attention = FusedAttention(self._seeds)

    @override
    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._seeds.reset()

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(autocast_dtype(x))

    @override
    def label_smoothed_cross_entropy(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        targets: Tensor,
        *,
        smoothing: float,
        num_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():  # an autograd.Function does not see this
            hidden_states, weight = hidden_states.detach(), weight.detach()
        loss, nll = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_states, weight, targets, num_tokens, smoothing
        )
        return loss, nll


class FusedAttention(PackedAttention):
    """Attention by one kernel forward and two backward, with seeds for dropout."""

    def __init__(self, seeds: "Seeds") -> None:
        self._seeds = seeds

    @override
    def self_attention(
        self, projected: Tensor, packing: Packing, *, num_heads: int, causal: bool, dropout: float
    ) -> Tensor:
        attended = packed_self_attention(
            projected.view(packing.num_rows, 3, num_heads, -1),
            packing.spans(packing, causal=causal),
            dropout=dropout,
            seed=self._seeds.draw(projected.device) if dropout else None,
        )
        return attended.flatten(1)

    @override
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
        attended = packed_cross_attention(
            query.view(queries.num_rows, num_heads, -1),
            key_value.view(keys.num_rows, 2, num_heads, -1),
            queries.spans(keys),
            dropout=dropout,
            seed=self._seeds.draw(query.device) if dropout else None,
        )
        return attended.flatten(1)


class Seeds:
    """Seeds for each use of dropout in a kernel, drawn on the device without synchronizing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard drawn seeds, after torch's generator was seeded."""
        self._drawn: list[Tensor] = []

    def draw(self, device: torch.device) -> Tensor:
        """Return a new [1] int64 seed; all draws between resets must be on the same device."""
        if not self._drawn:
            # Use every other number: pointers aligned to 16 bytes share one compiled kernel.
            drawn = torch.empty(_NUM_SEEDS, 2, dtype=torch.int64, device=device).random_()
            self._drawn = list(drawn[:, :1].unbind(0))
        return self._drawn.pop()


class _LinearCrossEntropy(torch.autograd.Function):
    """Output projection and loss in one: the gradient of logits overwrites the logits."""

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
        compute_dtype = autocast_dtype(hidden_states)
        targets = targets.clone()
        targets[num_tokens:] = PADDING
        grad_hidden_states = torch.empty_like(hidden_states) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        matrix = weight.to(compute_dtype)
        sums = hidden_states.new_zeros(2, dtype=torch.float32)
        num_rows = max(1, _CHUNK_ELEMENTS // len(weight))
        buffer = matrix.new_empty(min(num_rows, len(hidden_states)), len(weight))
        for start in range(0, len(hidden_states), num_rows):
            chunk = slice(start, start + num_rows)
            states = hidden_states[chunk].to(compute_dtype)
            logits = torch.mm(states, matrix.T, out=buffer[: len(states)])
            losses = cross_entropy_(logits, targets[chunk], smoothing=smoothing)
            sums += torch.stack(losses).sum(1)
            if grad_hidden_states is not None and grad_weight is not None:
                grad_hidden_states[chunk] = logits @ matrix
                grad_weight += logits.T @ states
        loss, nll = sums
        ctx.save_for_backward(grad_hidden_states, grad_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_states, grad_weight = ctx.saved_tensors
        return grad_hidden_states * grad_loss, grad_weight * grad_loss, None, None, None
