"""Multi-head attention, between the projections of its input and output (§3.2.2)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.model.attention import AttentionMask, additive_scores, attention, new_additive_weight
from tfm.model.packing import Layout


class InputProjection(nn.Linear):
    """The projections to queries, keys and values of all heads, as one weight (§3.2.2).

    One weight, as in torch.nn.MultiheadAttention: self-attention needs one product.
    """

    def __init__(self, d_model: int, widths: Sequence[int]) -> None:
        super().__init__(d_model, sum(widths))
        self.part_widths = [widths[0], sum(widths[1:])]  # queries; keys and values

    def forward(self, x: Tensor) -> Tensor:
        """Project […, d_model] to queries, keys and values […, h · (2 d_k + d_v)]."""
        return self.linear(x, self.weight, self.bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project […, d_model] to […, h · d_k]."""
        return self.linear(x, *self.parts()[0])

    def keys_values(self, memory: Tensor) -> Tensor:
        """Project […, d_model] to keys and values […, h · (d_k + d_v)]."""
        return self.linear(memory, *self.parts()[1])

    def queries_and_keys_values(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of x […, d_model] and the keys and values of memory […, d_model]."""
        # Split once: the gradient of the weight is then one concatenation.
        for_queries, for_memory = self.parts()
        return self.linear(x, *for_queries), self.linear(memory, *for_memory)

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight [out, d_model] and bias [out] for queries, and for keys and values."""
        weights, biases = (torch.split(x, self.part_widths) for x in (self.weight, self.bias))
        return list(zip(weights, biases, strict=True))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x Wᵀ + b: […, in] → […, out]."""
        return F.linear(x, weight, bias)


class Heads(nn.Module):
    """Attention in h heads, between the projections of input and output (§3.2.2).

    Args:
        num_heads: h.
        widths: h · d_k of queries and keys, and h · d_v of values.
        dropout: Probability of dropping an attention weight.
        causal: Whether query i sees keys 0 to i only.
        window: The number of keys that a query sees in self-attention; None for all.
    """

    def __init__(
        self,
        num_heads: int,
        widths: Sequence[int],
        *,
        dropout: float,
        causal: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.widths = list(widths)
        self.dropout = dropout
        self.causal = causal
        self.window = window

    def arguments(self) -> dict[str, Any]:
        """Return the arguments from which a subclass builds the same heads."""
        names = ("num_heads", "widths", "dropout", "causal", "window")
        return {name: getattr(self, name) for name in names}

    @property
    def active_dropout(self) -> float:
        """The probability of dropping an attention weight now."""
        return self.dropout if self.training else 0.0

    def forward(
        self,
        projections: Sequence[Tensor],
        queries: Layout,
        keys: Layout,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Let each token attend to its sentence, or each target token to the source of its pair.

        Args:
            projections: Joint queries, keys and values […, h · (2 d_k + d_v)]; or queries
                […, h · d_k], and joint keys and values […, h · (d_k + d_v)].
            queries: The layout of the queries.
            keys: The layout of the keys.
            additive_weight: [h, d_k] of `additive_scores`; None for dot products.

        Returns:
            […, h · d_v], with the layout of the queries.
        """
        *separate, joint = projections
        split = torch.split(keys.pad(joint), self.widths[len(separate) :], dim=-1)
        parts = [*(queries.pad(x) for x in separate), *split]
        query, key, value = (self.split(part, len(part)) for part in parts)
        # With a causal mask, no token sees the padding after its sentence.
        lengths = None if self.causal else keys.device_lengths
        mask = AttentionMask(key_lengths=lengths, causal=self.causal, window=self.window)
        attended = self.attend(query, key, value, mask, additive_weight)
        return queries.pack(attended.transpose(1, 2).flatten(2))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Attend as `attention` does, with the dropout of training: [B, h, T, d_v]."""
        dropout = self.active_dropout
        return attention(query, key, value, mask, additive_weight=additive_weight, dropout=dropout)

    def attend_cached(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        additive_weight: Tensor | None,
    ) -> Tensor:
        """Attend to cached keys and join the heads; the n queries of a group share their keys.

        Args:
            query: [G, h, n, d_k]; its dtype may differ from the dtype of keys and values.
            key: [G, h, d_k, C].
            value: [G, h, C, d_v].
            bias: [G, n or 1, C] added to scores: -inf where a key is hidden.
            additive_weight: [h, d_k] of `additive_scores`; None for dot products.

        Returns:
            [G · n, h · d_v], of the query's dtype.
        """
        bias = None if bias is None else bias[:, None]
        if additive_weight is None:
            return self.attend_cached_dot_product(query, key, value, bias)
        scores = additive_scores(query.to(key.dtype), key.mT, additive_weight)
        scores = scores if bias is None else scores + bias
        attended = scores.softmax(dim=-1).to(value.dtype) @ value
        return attended.to(query.dtype).transpose(1, 2).reshape(-1, self.widths[2])

    def attend_cached_dot_product(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Attend as `attend_cached` does with dot products; the bias is [G, 1, n or 1, C]."""
        # On a CPU, SDPA misreads an fp32 mask of fp64 scores as fp64.
        bias = None if bias is None else bias.to(key.dtype)
        attended = F.scaled_dot_product_attention(
            query.to(key.dtype), key.mT, value, attn_mask=bias
        )
        return attended.to(query.dtype).transpose(1, 2).flatten(2).flatten(0, 1)

    def split_joint(self, projected: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split joint projections [G · n, …] into queries, keys and values [G, h, n, …]."""
        if len(set(self.widths)) == 1:  # one view is faster than three
            heads = (num_groups, -1, 3, self.num_heads, self.widths[0] // self.num_heads)
            query, key, value = projected.view(heads).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            split = torch.split(projected, self.widths, dim=-1)
            query, key, value = (self.split(x, num_groups) for x in split)
        return query, key, value

    def split(self, projected: Tensor, num_groups: int) -> Tensor:
        """View [G · n, h · d], or [G, n, h · d], as heads [G, h, n, d]."""
        width = projected.size(-1) // self.num_heads
        return projected.view(num_groups, -1, self.num_heads, width).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own projections (§3.2.2).

    `causal` and `window` are documented at `AttentionMask`.
    """

    additive_weight: nn.Parameter | None

    def __init__(
        self, config: TransformerConfig, *, causal: bool = False, window: int | None = None
    ) -> None:
        super().__init__()
        head_widths = (config.key_width, config.key_width, config.value_width)
        widths = [config.num_heads * width for width in head_widths]
        self.input = InputProjection(config.d_model, widths)
        self.output = nn.Linear(widths[2], config.d_model)
        # Initialized as one matrix: three, with their larger weights, learn more slowly at first.
        for linear in (self.input, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.additive_weight = None
        if config.attention == "additive":
            self.additive_weight = new_additive_weight(config.num_heads, config.key_width)
        self.heads = Heads(
            config.num_heads,
            widths,
            dropout=config.attention_dropout,
            causal=causal,
            window=window,
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Attend from tokens […, d_model] to all tokens of their sentence: self-attention."""
        attended = self.heads([self.input(x)], layout, layout, self.additive_weight)
        out: Tensor = self.output(attended)
        return out

    def attend_to(self, x: Tensor, memory: Tensor, targets: Layout, sources: Layout) -> Tensor:
        """Attend from targets […, d_model] to the encoded sources […, d_model]."""
        projections = self.input.queries_and_keys_values(x, memory)
        attended = self.heads(projections, targets, sources, self.additive_weight)
        out: Tensor = self.output(attended)
        return out

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
        projected = self.input.keys_values(memory)
        key, value = torch.split(projected, self.heads.widths[1:], dim=-1)
        return self.heads.split(key, len(memory)), self.heads.split(value, len(memory))
