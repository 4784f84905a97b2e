"""The plain backend: how a model's layers are computed where nothing faster is chosen."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.cross_entropy import label_smoothed_cross_entropy
from tfm.backends.packing import Packing
from tfm.backends.slot_attention import slot_attention
from tfm.backends.token_blocks import block_max_and_logsumexp

# X, and whether to cut off what is below zero → X Wᵀ + b, of a weight and a bias made ready.
PrepackedLinear = Callable[[Tensor, bool], Tensor]


class PackedAttention(Protocol):
    """Scaled dot-product attention of packed sentences, each by itself (§3.2.1)."""

    def self_attention(
        self, projected: Tensor, packing: Packing, *, num_heads: int, causal: bool, dropout: float
    ) -> Tensor:
        """Attend to the own sentence.

        Args:
            projected: [num_rows, 3 · h · d_k] queries, keys and values.
            packing: Of the rows.
            num_heads: h.
            causal: Whether a token sees only those up to itself.
            dropout: Probability of dropping an attention weight.

        Returns:
            [num_rows, h · d_k].
        """

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
        """Attend to the sentence of the same number on another axis.

        Args:
            query: [num_rows, h · d_k].
            key_value: [num_rows of the keys, 2 · h · d_k].
            queries: Packing of the queries.
            keys: Packing of keys and values.
            num_heads: h.
            dropout: Probability of dropping an attention weight.

        Returns:
            [num_rows, h · d_k].
        """


class Backend:
    """How a model's layers are computed: here by torch's own operations, on padded batches.

    Subclasses override what they compute faster; each is held against this one.

    Attributes:
        packed_attention: Attention of packed sentences; None leaves batches padded.
        weights_dtype: The type that it needs weights to have; None if it takes any.
        compaction_threshold: All rows of a step are computed when at least this fraction is wanted.
        single_sentence_fast_path: Whether a single sentence is worth preparing the layers for.
        decodes_in_slots: Whether sentences are best decoded in slots of fixed shape.
    """

    packed_attention: PackedAttention | None = None
    weights_dtype: torch.dtype | None = None
    compaction_threshold = 1.0
    single_sentence_fast_path = False
    decodes_in_slots = False

    def seed(self, seed: int) -> None:
        """Seed the draws of dropout."""
        torch.manual_seed(seed)

    def cast_activations(self, x: Tensor) -> Tensor:
        """Give embeddings the type that activations have."""
        return x

    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        """Drop elements, and scale up the others."""
        return F.dropout(x, dropout)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """X Wᵀ + b."""
        return F.linear(x, weight, bias)

    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """dropout(max(0, x Wᵀ + b))."""
        return F.dropout(torch.relu(self.linear(x, weight, bias)), dropout)

    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """Residual + dropout(x Wᵀ + b)."""
        return residual + F.dropout(self.linear(x, weight, bias), dropout)

    def label_smoothed_cross_entropy(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        targets: Tensor,
        *,
        smoothing: float,
        num_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        """Loss against targets in which the right class has 1 - ε and the others share ε (§5.4).

        Args:
            hidden_states: [N, d_model] decoder outputs.
            weight: [V, d_model] output projection.
            targets: [N] right classes.
            smoothing: ε.
            num_tokens: Rows that count, the first ones.

        Returns:
            The smoothed loss and the plain negative log-likelihood, each summed over N, in nats.
        """
        return label_smoothed_cross_entropy(
            hidden_states, weight, targets, smoothing=smoothing, num_tokens=num_tokens
        )

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """X Wᵀ of the output embedding, whose rows are tokens."""
        return F.linear(x, weight)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(Q Kᵀ / √d_k + bias) V of few queries, as in decoding, heads joined.

        Args:
            query: [G, h, n, d_k], perhaps of another type than keys and values.
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, 1, n or 1, C] added to scores.

        Returns:
            [G · n, h · d_v], of the type of the query.
        """
        if bias is not None:
            bias = bias.to(key.dtype)  # a CPU reads an fp32 mask of fp64 scores as fp64
        attended = F.scaled_dot_product_attention(
            query.to(key.dtype), key.mT, value, attn_mask=bias
        )
        return attended.to(query.dtype).transpose(1, 2).flatten(2).flatten(0, 1)

    def attend_slots(
        self, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None
    ) -> Tensor:
        """Attention of hypotheses in slots; see `tfm.backends.slot_attention`."""
        return slot_attention(query, key, value, ends, ancestors)

    def block_max_and_logsumexp(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Maxima and sums of blocks of logits; see `tfm.backends.token_blocks`."""
        return block_max_and_logsumexp(logits)

    def prepack_linear(self, weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
        """A product with a weight that is prepared for it, if it can be."""

        def product(x: Tensor, relu: bool) -> Tensor:
            out = F.linear(x, weight, bias)
            return torch.relu(out) if relu else out

        return product

    def round_up_rows(self, needed: int) -> int:
        """Round the number of rows up, where the backend is faster if sizes repeat."""
        return needed


PLAIN = Backend()
