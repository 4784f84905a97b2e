"""The inference backend of GPUs; import it only if `tfm.backends.has_triton`."""

import torch
from torch import Tensor
from typing_extensions import override

from tfm.backends.gpu import FusedAttention, Seeds
from tfm.backends.plain import Backend
from tfm.backends.triton.slot_attention import slot_attention
from tfm.backends.triton.token_blocks import block_max_and_logsumexp


class GpuInferenceBackend(Backend):
    """Attention and block maxima by Triton kernels, the rest by torch, with weights of a dtype."""

    decodes_in_slots = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights_dtype = dtype
        self.packed_attention = FusedAttention(Seeds())

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(self.weights_dtype)

    @override
    def attend_slots(
        self, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None
    ) -> Tensor:
        return slot_attention(query, key, value, ends, ancestors)

    @override
    def block_max_and_logsumexp(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return block_max_and_logsumexp(logits)
