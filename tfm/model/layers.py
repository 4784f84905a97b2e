"""Embeddings, positions and layers of the Transformer (Vaswani et al. 2017, §3)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import ModelConfig, TransformerConfig
from tfm.errors import UsageError
from tfm.model.cache import LayerCache
from tfm.model.heads import MultiHeadAttention
from tfm.model.packing import Layout

_WAVELENGTH_BASE = 10_000.0
_INITIAL_POSITIONS, _MAX_INITIAL_NUMBERS = 256, 1 << 21  # fewer positions of a very wide model


def sinusoidal_encoding(positions: Tensor, d_model: int) -> Tensor:
    """Return the positional encoding of Vaswani et al. 2017, §3.5.

    Args:
        positions: [T] token positions, counted from 0.
        d_model: Even width of the encoding.

    Returns:
        [T, d_model] float32; sines at even, cosines at odd indices.
    """
    # In float64: float32 is too coarse for the angles of late positions.
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model
    angles = positions[:, None].double() / _WAVELENGTH_BASE**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


class Embedding(nn.Module):
    """Scaled token embeddings plus positions, with dropout on the sum.

    Args:
        weight: [V, d_model] the embedding matrix, which may be shared.
        config: Dropout, and the number of learned positions (table 3, row E), if any.
    """

    positions: Tensor

    def __init__(self, weight: nn.Parameter, config: TransformerConfig) -> None:
        super().__init__()
        self.weight = weight
        self.scale = math.sqrt(weight.size(1))
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.max_positions = config.learned_positions
        if self.max_positions is None:
            # On the CPU, even if the model is built on the meta device.
            num_positions = min(_INITIAL_POSITIONS, _MAX_INITIAL_NUMBERS // weight.size(1))
            first = torch.arange(num_positions, device="cpu")
            table = sinusoidal_encoding(first, weight.size(1))
            self.register_buffer("positions", table, persistent=False)
        else:
            self.positions = new_embedding_weight(self.max_positions, weight.size(1))

    def forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Embed tokens, of any shape with this layout, as […, d_model]."""
        dropped: Tensor = self.dropout(self.embed(tokens, layout))
        return dropped

    def embed(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Return the sum of scaled embeddings and positions […, d_model], before dropout."""
        self._reserve(layout.num_positions)
        embedded = nn.functional.embedding(tokens, self.weight)
        positions = layout.position_rows(self.positions)
        return torch.add(positions, embedded, alpha=self.scale)

    def _reserve(self, num_positions: int) -> None:
        """Extend the table of sinusoids to a number of positions."""
        if num_positions <= len(self.positions):
            return
        if self.max_positions is not None:
            raise UsageError(
                f"a sentence of {num_positions:,} tokens is longer than the "
                f"{self.max_positions:,} positions that the model learned: split the sentence, or "
                "train a model with more --learned-positions or with sinusoids"
            )
        longer = torch.arange(2 * num_positions, device="cpu")  # Apple GPUs have no float64
        table = sinusoidal_encoding(longer, self.weight.size(1))
        self.positions = table.to(self.positions.device)


def new_embedding_weight(vocab_size: int, d_model: int) -> nn.Parameter:
    """Draw [V, d_model] from N(0, 1/d_model), so that scaled embeddings have unit variance."""
    return nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))


def new_embedding_weights(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int
) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Draw the source, target and output embeddings [V, d_model]; tied ones are one parameter."""
    source_weight = new_embedding_weight(source_vocab_size, config.d_model)
    target_weight = output_weight = source_weight
    if config.tied_embeddings != "three-way":
        target_weight = output_weight = new_embedding_weight(target_vocab_size, config.d_model)
    if config.tied_embeddings == "none":
        output_weight = new_embedding_weight(target_vocab_size, config.d_model)
    return source_weight, target_weight, output_weight


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
