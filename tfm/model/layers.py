"""The layers of the Transformer (Vaswani et al. 2017, §3.1 and §3.3)."""

from typing import Protocol, cast

from torch import Tensor, nn

from tfm.backends.plain import PLAIN, Backend
from tfm.config import TransformerConfig
from tfm.model.attention import MultiHeadAttention, Sentences
from tfm.model.single_sentence import FoldedCrossAttention, SingleSentenceLayer, as_function


class LayerCache(Protocol):
    """The keys and values that the decoder layers attend to at the next position of hypotheses."""

    def attend(
        self, index: int, attention: MultiHeadAttention, projected: Tensor, window: int | None
    ) -> Tensor:
        """Add the keys and values of a position to a layer, and attend to all positions up to it.

        Maps queries, keys and values [R, h · (2 d_k + d_v)] to [R, h · d_v]. The window is the
        number of positions that a query sees, including its own; None for all.
        """

    def attend_source(self, index: int, attention: MultiHeadAttention, queries: Tensor) -> Tensor:
        """Attend from queries [R, h · d_k] of a layer to the source: [R, h · d_v]."""


class Residual(nn.Module):
    """The residual connection, dropout and layer normalization around a sub-layer (§3.1).

    Post-norm, as in the paper: LayerNorm(x + Dropout(sublayer(x))).
    Pre-norm: x + Dropout(sublayer(LayerNorm(x))).
    """

    backend: Backend = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = config.dropout
        self.norm_first = config.norm == "pre"

    def sublayer_input(self, x: Tensor) -> Tensor:
        """Return the sub-layer's input […, d_model]: x, normalized if pre-norm."""
        return cast("Tensor", self.norm(x)) if self.norm_first else x

    def add_and_norm(self, x: Tensor, hidden_states: Tensor, output: nn.Linear) -> Tensor:
        """Apply the sub-layer's output projection, add x, and normalize if post-norm.

        Args:
            x: […, d_model] residual.
            hidden_states: […, in] input of the output projection.
            output: The output projection.

        Returns:
            […, d_model].
        """
        dropout = self.dropout if self.training else 0.0
        if not self.norm_first:
            return self.backend.add_linear_dropout_norm(
                x, hidden_states, output, dropout, self.norm
            )
        return self.backend.add_linear_dropout(
            x, hidden_states, output.weight, output.bias, dropout
        )


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at each position (§3.3)."""

    backend: Backend = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = config.relu_dropout
        # Weights keep torch's initialization, ±1/√fan_in: with Glorot's, learning starts later.
        for linear in (self.inner, self.outer):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map […, d_model] to […, d_ff], the input of `outer`."""
        dropout = self.dropout if self.training else 0.0
        inner = self.inner
        return self.backend.linear_relu_dropout(x, inner.weight, inner.bias, dropout)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.attention_window = config.attention_window
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, sentences: Sentences) -> Tensor:
        """Map [B, S, d_model], or packed [num_rows, d_model], to the same shape."""
        attention, residual = self.self_attention, self.self_attention_residual
        attended = attention.self_attend(
            residual.sublayer_input(x), sentences, window=self.attention_window
        )
        x = residual.add_and_norm(x, attended, attention.output)
        inner = self.feed_forward(self.feed_forward_residual.sublayer_input(x))
        return self.feed_forward_residual.add_and_norm(x, inner, self.feed_forward.outer)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the source, and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.attention_window = config.attention_window
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, encoded: Tensor, targets: Sentences, sources: Sentences) -> Tensor:
        """Map targets [B, T, d_model] to the same shape, given encoded sources [B, S, d_model].

        Either may be packed, [num_rows, d_model].
        """
        attention, residual = self.self_attention, self.self_attention_residual
        attended = attention.self_attend(
            residual.sublayer_input(x), targets, causal=True, window=self.attention_window
        )
        x = residual.add_and_norm(x, attended, attention.output)
        attended = self.cross_attention.cross_attend(
            self.cross_attention_residual.sublayer_input(x), encoded, targets, sources
        )
        return self._after_attention(x, attended)

    def step(self, x: Tensor, cache: LayerCache, index: int) -> Tensor:
        """Decode the next position [R, d_model] of hypotheses, and add it to their cache."""
        attention, residual = self.self_attention, self.self_attention_residual
        projected = attention.project(residual.sublayer_input(x))
        attended = cache.attend(index, attention, projected, self.attention_window)
        x = residual.add_and_norm(x, attended, attention.output)
        attention, residual = self.cross_attention, self.cross_attention_residual
        queries = attention.project_queries(residual.sublayer_input(x))
        return self._after_attention(x, cache.attend_source(index, attention, queries))

    def for_single_sentence(self, key: Tensor, value: Tensor) -> SingleSentenceLayer:
        """Prepare the layer for one source, given its keys [h, S, d_k] and values [h, S, d_v]."""
        attention, feed_forward = self.self_attention, self.feed_forward
        linears = (attention.input, attention.output, feed_forward.inner, feed_forward.outer)
        residuals = (
            self.self_attention_residual,
            self.cross_attention_residual,
            self.feed_forward_residual,
        )
        return SingleSentenceLayer(
            [as_function(residual.norm) for residual in residuals],
            residuals[0].norm_first,
            FoldedCrossAttention.of(self.cross_attention, key, value),
            *(attention.backend.prepack_linear(linear.weight, linear.bias) for linear in linears),
        )

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.cross_attention_residual.add_and_norm(x, attended, self.cross_attention.output)
        inner = self.feed_forward(self.feed_forward_residual.sublayer_input(x))
        return self.feed_forward_residual.add_and_norm(x, inner, self.feed_forward.outer)
