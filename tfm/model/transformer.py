"""The Transformer (Vaswani et al. 2017, §3.1)."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.model.cache import DecoderCache, DecodingState, KeysValues, StepRows, keys_values
from tfm.model.layers import DecoderLayer, Embedding, EncoderLayer, new_embedding_weights
from tfm.model.packing import Layout, Packing, Padded


class Encoder(nn.ModuleList):
    """A stack of N encoder layers."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Map embedded sources […, d_model] to the same shape."""
        for layer in self:
            x = layer(x, layout)
        return x

    def layers(self) -> Iterator[EncoderLayer]:
        """Yield the layers."""
        return cast("Iterator[EncoderLayer]", iter(self))


class Decoder(nn.ModuleList):
    """A stack of N decoder layers."""

    def forward(self, x: Tensor, encoded: Tensor, targets: Layout, sources: Layout) -> Tensor:
        """Map embedded targets […, d_model] to the same shape, given encoded sources."""
        for layer in self:
            x = layer(x, encoded, targets, sources)
        return x

    def layers(self) -> Iterator[DecoderLayer]:
        """Yield the layers."""
        return cast("Iterator[DecoderLayer]", iter(self))

    def start(self, encoded: Tensor, lengths: Tensor) -> DecodingState:
        """Return the cache of one hypothesis for each encoded source [B, S, d_model]."""
        layers = list(self.layers())
        memory = [keys_values(layer.cross_attention, encoded) for layer in layers]
        return self.new_cache(memory, lengths, layers[0].self_attention.heads.window)

    def new_cache(
        self, memory: list[KeysValues], lengths: Tensor, window: int | None
    ) -> DecoderCache:
        """Create the cache of sources of [B] lengths: see `DecoderCache.for_sources`."""
        return DecoderCache.for_sources(memory, lengths, window=window)

    def step(self, x: Tensor, cache: DecoderCache, outputs: Tensor | None) -> Tensor:
        """Decode the next position of the B·K hypotheses: [B·K, d_model] to the same shape.

        With `outputs`, only these [R] hypotheses are returned; others may be left out. If K is 1,
        there may be several positions: [B·T, d_model].
        """
        rows = self.choose_rows(len(x), outputs)
        x = rows.select(x)
        cache.begin_step(rows)
        for index, layer in enumerate(self.layers()):
            x = layer.step(x, cache, index)
        return rows.select_outputs(x)

    def choose_rows(self, num_hypotheses: int, outputs: Tensor | None) -> StepRows:
        """Choose the hypotheses that a step computes, given the hypotheses [R] that it returns."""
        return StepRows.of(num_hypotheses, outputs)


class ToLogits(nn.Module):
    """The projection to logits, by a weight that embeddings may share (§3.4)."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Project […, d_model] by [V, d_model] and [V] to […, V]."""
        return F.linear(x, weight, bias)


class Transformer(nn.Module):
    """The encoder-decoder model."""

    output_bias: nn.Parameter | None  # [V] of the logits, where the settings ask for one

    def __init__(self, config: TransformerConfig, vocab_sizes: tuple[int, int]) -> None:
        super().__init__()
        source_weight, target_weight, output_weight = new_embedding_weights(config, vocab_sizes)
        # The maximum number of tokens of a source or target; None if unlimited.
        self.max_positions = config.learned_positions
        self.source_embedding = Embedding(source_weight, config)
        self.target_embedding = Embedding(target_weight, config)
        self.encoder = Encoder(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = Decoder(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        # Pre-norm leaves the last residual sum without a norm: add one after each stack.
        final_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = final_norm(config.d_model)
        self.decoder_norm = final_norm(config.d_model)
        self.output_weight = output_weight
        self.output_bias = None
        if config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(len(output_weight)))
        self.to_logits = ToLogits()

    def forward(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """Decode all positions, each after the true tokens before it (teacher forcing).

        Maps sources [B, S] of [B] lengths, padded at the end, and targets [B, T], shifted right by
        one, to hidden states [B, T, d_model]; `logits` projects them, the loss in chunks. Padding
        may hold any values.
        """
        sources, targets = Padded(source.size(1), lengths), Padded(target_input.size(1))
        return self.decode(target_input, targets, self.encode(source, sources), sources)

    def forward_packed(
        self, source: Tensor, sources: Packing, target_input: Tensor, targets: Packing
    ) -> Tensor:
        """Decode packed tokens [num_rows] to [num_rows, d_model] as `forward` does."""
        return self.decode(target_input, targets, self.encode(source, sources), sources)

    def encode(self, source: Tensor, sources: Layout) -> Tensor:
        """Encode source tokens […] as […, d_model]."""
        x = self.encoder(self.source_embedding(source, sources), sources)
        out: Tensor = self.encoder_norm(x)
        return out

    def decode(
        self, target_input: Tensor, targets: Layout, encoded: Tensor, sources: Layout
    ) -> Tensor:
        """Decode target tokens […], given encoded sources […, d_model], to […, d_model]."""
        x = self.decoder(self.target_embedding(target_input, targets), encoded, targets, sources)
        out: Tensor = self.decoder_norm(x)
        return out

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Project […, d_model] to unnormalized log probabilities […, V] (§3.4)."""
        out: Tensor = self.to_logits(hidden_states, self.output_weight, self.output_bias)
        return out

    def start(self, source: Tensor, lengths: Tensor) -> DecodingState:
        """Encode sources [B, S] of [B] lengths; return the state of one hypothesis for each."""
        encoded = self.encode(source, Padded(source.size(1), lengths))
        return self.decoder.start(encoded, lengths)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode the position after tokens [B, K] to logits [B, K, V], and add it to the state."""
        return self.logits(self.step_hidden(tokens, state)).view(*tokens.shape, -1)

    def step_rows(self, tokens: Tensor, state: Any, rows: Tensor) -> Callable[[slice], Tensor]:
        """Decode as `step` does; return the projection of a slice of rows to logits [R', V].

        The rows are [R] indices among the B·K hypotheses. The others may be left out of the
        computation, and must not be continued.
        """
        hidden = self.step_hidden(tokens, state, rows)
        return lambda part: self.logits(hidden[part])

    def step_hidden(self, tokens: Tensor, state: Any, rows: Tensor | None = None) -> Tensor:
        """Decode as `step` does to the hidden states [B·K or R, d_model], without projection."""
        num_positions = tokens.size(1) // state.num_hypotheses
        positions = Padded(num_positions, first_position=state.position)
        x = self.target_embedding(tokens.reshape(-1, num_positions), positions)
        x = self.decoder.step(x.flatten(0, 1), state, rows)
        state.position += num_positions
        out: Tensor = self.decoder_norm(x)
        return out
