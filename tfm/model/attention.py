"""Multi-head attention (Vaswani et al. 2017, §3.2)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which keys a query may attend to: the meaning, which each attention renders its own way.

    Attributes:
        key_lengths: [B] number of valid keys, counted from the first; None if all are valid.
        causal: Whether query i sees keys 0 to i only.
    """

    key_lengths: Tensor | None = None
    causal: bool = False

    def allowed(self, num_queries: int, num_keys: int) -> Tensor | None:
        """[B or 1, 1, T or 1, S] True where attention is allowed; None if it is everywhere."""
        allowed = None
        if self.key_lengths is not None:
            columns = torch.arange(num_keys, device=self.key_lengths.device)
            allowed = (columns < self.key_lengths[:, None])[:, None, None, :]
        if self.causal:
            device = None if allowed is None else allowed.device
            triangle = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril()
            allowed = triangle[None, None] if allowed is None else allowed & triangle
        return allowed


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, *, dropout: float = 0.0
) -> Tensor:
    """softmax(QKᵀ / √d_k) V, with dropout on the softmax (§3.2.1).

    Args:
        query: [B, h, T, d_k].
        key: [B, h, S, d_k].
        value: [B, h, S, d_v].
        mask: Which keys each query may attend to; at least one.
        dropout: Probability of dropping an attention weight.

    Returns:
        [B, h, T, d_v].
    """
    if mask.key_lengths is None:  # lets the kernel skip what a causal mask hides
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=mask.causal
        )
    allowed = mask.allowed(query.size(2), key.size(2))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout)


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each over its own projections (§3.2.2).

    The projections to queries, keys and values are rows of one weight, so that self-attention
    needs one matrix product.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.widths = [
            config.num_heads * width
            for width in (config.key_width, config.key_width, config.value_width)
        ]
        self.input = nn.Linear(config.d_model, sum(self.widths))
        self.output = nn.Linear(self.widths[2], config.d_model)
        for part in torch.split(self.input.weight, self.widths):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.input.bias)
        nn.init.zeros_(self.output.bias)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project [B, T, d_model] to queries, keys [B, h, T, d_k] and values [B, h, T, d_v]."""
        query, key, value = torch.split(self.input(x), self.widths, dim=-1)
        return self._heads(query), self._heads(key), self._heads(value)

    def queries(self, x: Tensor) -> Tensor:
        """Project [B, T, d_model] to queries [B, h, T, d_k]."""
        rows = self.widths[0]
        return self._heads(F.linear(x, self.input.weight[:rows], self.input.bias[:rows]))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, d_model] to keys [B, h, S, d_k] and values [B, h, S, d_v]."""
        rows = self.widths[0]
        both = F.linear(x, self.input.weight[rows:], self.input.bias[rows:])
        key, value = torch.split(both, self.widths[1:], dim=-1)
        return self._heads(key), self._heads(value)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        """Attend in each head, join the heads and project them to [B, T, d_model]."""
        dropout = self.dropout if self.training else 0.0
        heads = scaled_dot_product_attention(query, key, value, mask, dropout=dropout)
        joined: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return joined

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
