"""The reference backend in plain torch, and the interface of all backends."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.packing import Packing

# (x, relu) → x Wᵀ + b of a prepacked weight and bias, followed by ReLU if `relu`.
PrepackedLinear = Callable[[Tensor, bool], Tensor]


class PackedAttention(Protocol):
    """Scaled dot-product attention in a packed batch (Vaswani et al. 2017, §3.2.1)."""

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
        """Let each token attend to its sentence, or each target token to the source of its pair.

        Args:
            projections: Joint queries, keys and values [num_rows, 3 · h · d_k]; or queries
                [num_rows, h · d_k] and joint keys and values [num_rows of the keys, 2 · h · d_k].
            queries: The sentences of the queries.
            keys: The sentences of the keys, one for each of `queries`.
            num_heads: h.
            causal: Whether later tokens of the same sentence are hidden.
            dropout: Probability of dropping an attention weight.

        Returns:
            [num_rows, h · d_k].
        """


class Backend:
    """The operations of a model's layers: here torch's own, on padded batches.

    Subclasses override the operations that they compute faster; tests compare them with these.
    """

    packed_attention: PackedAttention | None = None  # None if batches must be padded
    # Compute all rows of a step when at least this fraction is active.
    compaction_threshold = 1.0
    single_sentence_fast_path = False  # whether preparing the layers pays for a single sentence

    def seed(self, seed: int) -> None:
        """Seed the random numbers of dropout."""
        torch.manual_seed(seed)

    def cast_activations(self, x: Tensor) -> Tensor:
        """Cast embeddings, of any shape, to the dtype of activations."""
        return x

    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        """Zero elements of x, of any shape, and scale up the others (§5.4)."""
        return F.dropout(x, dropout)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x Wᵀ + b: […, in] → […, out]."""
        return F.linear(x, weight, bias)

    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """Return dropout(max(0, x Wᵀ + b)): […, in] → […, out]."""
        return F.dropout(torch.relu(self.linear(x, weight, bias)), dropout)

    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """Return residual + dropout(x Wᵀ + b): […, in] → […, out], as the residual."""
        return residual + F.dropout(self.linear(x, weight, bias), dropout)

    def add_linear_dropout_norm(
        self, residual: Tensor, x: Tensor, linear: nn.Linear, dropout: float, norm: nn.LayerNorm
    ) -> Tensor:
        """Normalize what `add_linear_dropout` returns: […, in] → […, out], as the residual."""
        summed = self.add_linear_dropout(residual, x, linear.weight, linear.bias, dropout)
        return cast("Tensor", norm(summed))

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return logits […, V] of hidden states […, d_model]; the weight is [V, d_model]."""
        return F.linear(x, weight)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_bias: Tensor | None
    ) -> Tensor:
        """Return softmax(Q Kᵀ / √d_k + bias) V of few queries, as in decoding, heads merged.

        Args:
            query: [G, h, n, d_k]; its dtype may differ from that of keys and values.
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            attention_bias: [G, 1, n or 1, C] added to scores.

        Returns:
            [G · n, h · d_v], of the query's dtype.
        """
        if attention_bias is not None:
            # On a CPU, SDPA misreads an fp32 mask of fp64 scores as fp64.
            attention_bias = attention_bias.to(key.dtype)
        attended = F.scaled_dot_product_attention(
            query.to(key.dtype), key.mT, value, attn_mask=attention_bias
        )
        return attended.to(query.dtype).transpose(1, 2).flatten(2).flatten(0, 1)

    def prepack_linear(self, weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
        """Return a linear layer of weight [out, in] and bias [out], prepacked if that is faster."""

        def linear(x: Tensor, relu: bool) -> Tensor:
            out = F.linear(x, weight, bias)
            return torch.relu(out) if relu else out

        return linear

    def round_up_rows(self, num_rows: int) -> int:
        """Round the number of rows up, so that few distinct shapes occur."""
        return num_rows


PLAIN = Backend()
