"""The backends of GPUs, for training and inference; import only if `tfm.backends.has_triton`."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.cross_entropy import GPU_CHUNK_ELEMENTS, differentiable_loss
from tfm.backends.packing import Packing
from tfm.backends.plain import Backend, PackedAttention
from tfm.backends.triton.cross_entropy import cross_entropy_
from tfm.backends.triton.packed_attention import packed_attention
from tfm.backends.triton.slot_attention import slot_attention
from tfm.backends.triton.token_blocks import block_max_and_logsumexp

# Seeds per draw: more than a step of the paper's models needs.
_NUM_SEEDS = 64


class GpuBackend(Backend):
    """Attention and loss by Triton kernels, residual sums by compiled ones, the rest by torch.

    Args:
        dtype: Dtype of weights, activations and gradients.
    """

    is_replayable = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights_dtype = dtype
        self.packed_attention = self._attention = FusedAttention()

    @override
    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._attention.reset()

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(self.weights_dtype)

    @override
    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        return _fused(add_dropout, x)(residual, F.linear(x, weight, bias), dropout)

    @override
    def add_linear_dropout_norm(
        self, residual: Tensor, x: Tensor, linear: nn.Linear, dropout: float, norm: nn.LayerNorm
    ) -> Tensor:
        parameters = (norm.weight, norm.bias, norm.eps)
        return _fused(add_dropout_norm, x)(residual, linear(x), dropout, *parameters)

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
        compute = partial(_compute_loss, targets=targets, smoothing=smoothing)
        return differentiable_loss(compute, hidden_states, weight)


def add_dropout(residual: Tensor, x: Tensor, dropout: float) -> Tensor:
    """Return residual + dropout(x), all […, d_model]."""
    return residual + F.dropout(x, dropout)


def add_dropout_norm(
    residual: Tensor, x: Tensor, dropout: float, weight: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    """Normalize residual + dropout(x), all […, d_model], with a weight and bias [d_model]."""
    return F.layer_norm(add_dropout(residual, x, dropout), weight.shape, weight, bias, epsilon)


def _fused(function: Callable[..., Tensor], x: Tensor) -> Callable[..., Tensor]:
    """Compile a function of tensors like x into one kernel; on a CPU return it unchanged."""
    return _compiled(function) if x.is_cuda else function


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function)


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
    sums = hidden_states.new_zeros(2, dtype=torch.float32)
    num_rows = max(1, GPU_CHUNK_ELEMENTS // len(weight))
    buffer = weight.new_empty(min(num_rows, len(hidden_states)), len(weight))
    for start in range(0, len(hidden_states), num_rows):
        chunk = slice(start, start + num_rows)
        states = hidden_states[chunk].to(weight.dtype)
        logits = torch.mm(states, weight.T, out=buffer[: len(states)])
        losses = cross_entropy_(logits, targets[chunk], smoothing=smoothing)
        sums += torch.stack(losses).sum(1)
        if gradients is not None:
            grad_hidden_states, grad_weight = gradients
            grad_hidden_states[chunk] = logits @ weight
            grad_weight += logits.T @ states
    loss, nll = sums
    return loss, nll
