"""The operations of a model's layers on a GPU if nothing is learned.

To be imported only where `tfm.backends.has_triton`.
"""

import torch
from torch import Tensor

from tfm.backends.gpu import FusedAttention, Seeds
from tfm.backends.plain import Backend
from tfm.backends.triton.slot_attention import slot_attention
from tfm.backends.triton.token_blocks import block_max_and_logsumexp


class GpuInferenceBackend(Backend):
    """Infer on a GPU: attention and the search through logits by Triton kernels.

    All else is as torch has it, in the arithmetic that weights have been given.

    Args:
        dtype: Of weights and activations.
    """

    decodes_in_slots = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights_dtype = dtype
        self.packed_attention = FusedAttention(Seeds())

    def cast_activations(self, x: Tensor) -> Tensor:
        """See `Backend`."""
        return x.to(self.weights_dtype)

    def attend_slots(
        self, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None
    ) -> Tensor:
        """See `Backend`."""
        return slot_attention(query, key, value, ends, ancestors)

    def block_max_and_logsumexp(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        return block_max_and_logsumexp(logits)
