"""The layers of the Transformer (Vaswani et al. 2017, §3.1 and §3.3)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.data.packing import Layout
from tfm.model.attention import MultiHeadAttention
from tfm.model.cache import LayerCache

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,  # x · Φ(x), without approximation
    "silu": F.silu,  # x · σ(x)
}


class Residual(nn.Module):
    """The residual connection, dropout and layer normalization around a sub-layer (§3.1).

    Post-norm, as in the paper: LayerNorm(x + Dropout(Sublayer(x))).
    Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Map […, d_model] to the same shape."""
        return self.after(x, sublayer(self.before(x)))

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer, […, d_model], given x […, d_model]."""
        out: Tensor = self.norm(x) if self.norm_first else x
        return out

    def after(self, x: Tensor, out: Tensor) -> Tensor:
        """Return the result […, d_model] for x and the output of the sub-layer, […, d_model]."""
        summed = self.add(x, out)
        return summed if self.norm_first else self.norm(summed)

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """Add the output of the sub-layer to its input, both […, d_model]."""
        summed: Tensor = x + self.dropout(out)
        return summed


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂ at each position; the paper's f is ReLU (§3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.activation = _ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.relu_dropout)
        # Weights keep torch's initialization, ±1/√fan_in: with Glorot's, learning starts later.
        for linear in (self.inner, self.outer):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map […, d_model] to the same shape."""
        out: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return out


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, window=config.attention_window)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Map sources […, d_model] to the same shape."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, layout))
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoded source, and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            config, causal=True, window=config.attention_window
        )
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, encoded: Tensor, targets: Layout, sources: Layout) -> Tensor:
        """Map targets […, d_model] to the same shape, given encoded sources […, d_model]."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, targets))
        x = self.cross_attention_residual(
            x, lambda x: self.cross_attention.attend_to(x, encoded, targets, sources)
        )
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out

    def step(self, x: Tensor, cache: LayerCache, index: int) -> Tensor:
        """Decode the next position [R, d_model] of hypotheses as layer `index` of the cache."""
        x = self.self_attention_residual(
            x, lambda x: cache.attend_to_past(index, self.self_attention, x)
        )
        x = self.cross_attention_residual(
            x, lambda x: cache.attend_to_source(index, self.cross_attention, x)
        )
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out
