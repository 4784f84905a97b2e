"""The backends of GPUs, for training and inference; import only if `tfm.backends.has_triton`."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from tfm.backends.cross_entropy import (
    GPU_CHUNK_ELEMENTS,
    autocast_dtype,
    differentiable_loss,
)
from tfm.backends.packing import Packing
from tfm.backends.plain import Backend, PackedAttention
from tfm.backends.triton.cross_entropy import PADDING, cross_entropy_
from tfm.backends.triton.packed_attention import packed_attention
from tfm.backends.triton.slot_attention import slot_attention
from tfm.backends.triton.token_blocks import block_max_and_logsumexp

# Seeds per draw: more than a step of the paper's models needs.
_NUM_SEEDS = 64


class GpuBackend(Backend):
    """Attention and loss by Triton kernels, everything else by torch.

    Autocast decides the dtype of matrix products and of their results; weights, their gradients
    and sums are fp32.
    """

    def __init__(self) -> None:
        self.packed_attention = self._attention = FusedAttention()

    @override
    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._attention.reset()

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
        targets = targets.clone()
        targets[num_tokens:] = PADDING
        compute = partial(_compute_loss, targets=targets, smoothing=smoothing)
        return differentiable_loss(compute, hidden_states, weight)


class GpuInferenceBackend(Backend):
    """Attention and block maxima by Triton kernels, the rest by torch, with weights of a dtype."""

    decodes_in_slots = True
    attend_slots = staticmethod(slot_attention)
    block_max_and_logsumexp = staticmethod(block_max_and_logsumexp)

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights_dtype = dtype
        self.packed_attention = FusedAttention()

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(self.weights_dtype)


class FusedAttention(PackedAttention):
    """Attention by one kernel forward and two backward.

    Each use of dropout needs a seed, drawn on the device without synchronizing.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard drawn seeds, after torch's generator was seeded."""
        self._seeds: list[Tensor] = []

    @override
    def attend(
        self,
        projections: Sequence[Tensor],
        queries: Packing,
        keys: Packing,
        *,
        num_heads: int,
        causal: bool,
        dropout: float,
    ) -> Tensor:
        *query, joint = projections
        heads = [x.view(len(x), num_heads, -1) for x in query]
        heads.append(joint.view(len(joint), 3 - len(query), num_heads, -1))
        seed = self._draw_seed(joint.device) if dropout else None
        spans = queries.spans(keys, causal=causal)
        return packed_attention(heads, spans, dropout=dropout, seed=seed).flatten(1)

    def _draw_seed(self, device: torch.device) -> Tensor:
        """Return a new [1] int64 seed; all draws between resets must be on the same device."""
        if not self._seeds:
            # Use every other number: pointers aligned to 16 bytes share one compiled kernel.
            drawn = torch.empty(_NUM_SEEDS, 2, dtype=torch.int64, device=device).random_()
            self._seeds = list(drawn[:, :1].unbind(0))
        return self._seeds.pop()


def _compute_loss(
    hidden_states: Tensor,
    weight: Tensor,
    gradients: tuple[Tensor, Tensor] | None,
    *,
    targets: Tensor,
    smoothing: float,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of chunks of rows; the gradients of logits overwrite the logits."""
    compute_dtype = autocast_dtype(hidden_states)
    matrix = weight.to(compute_dtype)
    sums = hidden_states.new_zeros(2, dtype=torch.float32)
    num_rows = max(1, GPU_CHUNK_ELEMENTS // len(weight))
    buffer = matrix.new_empty(min(num_rows, len(hidden_states)), len(weight))
    for start in range(0, len(hidden_states), num_rows):
        chunk = slice(start, start + num_rows)
        states = hidden_states[chunk].to(compute_dtype)
        logits = torch.mm(states, matrix.T, out=buffer[: len(states)])
        losses = cross_entropy_(logits, targets[chunk], smoothing=smoothing)
        sums += torch.stack(losses).sum(1)
        if gradients is not None:
            grad_hidden_states, grad_weight = gradients
            grad_hidden_states[chunk] = logits @ matrix
            grad_weight += logits.T @ states
    loss, nll = sums
    return loss, nll
