"""Embeddings and layers of the Transformer (Vaswani et al. 2017, §3.1, §3.4)."""

import math

import torch
from torch import Tensor, nn

from tfm.config import ModelConfig, TransformerConfig
from tfm.errors import UsageError
from tfm.model.attention import FeedForward, MultiHeadAttention, Residual, sinusoidal_encoding
from tfm.model.cache import LayerCache
from tfm.model.packing import Layout

_INITIAL_POSITIONS, _MAX_INITIAL_NUMBERS = 256, 1 << 21  # fewer positions of a very wide model


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
    config: ModelConfig, vocab_sizes: tuple[int, int]
) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Draw source, target and output embeddings [V, d_model]; tied embeddings are one parameter."""
    source_vocab_size, target_vocab_size = vocab_sizes
    source_weight = new_embedding_weight(source_vocab_size, config.d_model)
    target_weight = output_weight = source_weight
    if config.tied_embeddings != "three-way":
        target_weight = output_weight = new_embedding_weight(target_vocab_size, config.d_model)
    if config.tied_embeddings == "none":
        output_weight = new_embedding_weight(target_vocab_size, config.d_model)
    return source_weight, target_weight, output_weight


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
