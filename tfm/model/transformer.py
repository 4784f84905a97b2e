"""The Transformer (Vaswani et al. 2017, §3.1 and §3.3)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.model.attention import AttentionMask, MultiHeadAttention
from tfm.model.embedding import Embedding, new_embedding_weights

_EVERYWHERE = AttentionMask()


class Residual(nn.Module):
    """The residual connection, dropout and layer normalisation around a sub-layer (§3.1).

    Post-norm, as in the paper: LayerNorm(x + Dropout(sublayer(x))).
    Pre-norm: x + Dropout(sublayer(LayerNorm(x))).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer is given, for x [B, T, d_model]."""
        given: Tensor = self.norm(x) if self.norm_first else x
        return given

    def after(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the sub-layer's output to x, both [B, T, d_model]."""
        summed: Tensor = x + self.dropout(output)
        return summed if self.norm_first else cast("Tensor", self.norm(summed))


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at each position (§3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.relu_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, d_model] to the same shape."""
        out: Tensor = self.outer(self.dropout(torch.relu(self.inner(x))))
        return out


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: AttentionMask) -> Tensor:
        """Map [B, S, d_model] to the same shape."""
        query, key, value = self.self_attention.queries_keys_values(
            self.self_attention_residual.before(x)
        )
        attended = self.self_attention.attend(query, key, value, mask)
        x = self.self_attention_residual.after(x, attended)
        fed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, fed)


KeysValues = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """Self-attention to what came before, attention to the source, a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_mask = AttentionMask(causal=True, window=config.attention_window)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, encoded: Tensor, memory_mask: AttentionMask) -> Tensor:
        """Decode all positions at once.

        Args:
            x: [B, T, d_model].
            encoded: [B, S, d_model] what the encoder made of the sources.
            memory_mask: Which of their positions are valid.

        Returns:
            [B, T, d_model].
        """
        query, key, value = self.self_attention.queries_keys_values(
            self.self_attention_residual.before(x)
        )
        attended = self.self_attention.attend(query, key, value, self.self_attention_mask)
        memory = self.cross_attention.keys_values(encoded)
        return self._after_self_attention(x, attended, memory, memory_mask)

    def step(
        self,
        x: Tensor,
        past: KeysValues | None,
        memory: KeysValues,
        memory_mask: AttentionMask,
    ) -> tuple[Tensor, KeysValues]:
        """Decode the next position of K hypotheses for each of B sentences.

        Hypotheses of a sentence share its memory: to cross-attention they are K queries.

        Args:
            x: [B, K, d_model].
            past: Keys and values [B·K, h, t, …] of the positions before; None at the first.
            memory: This layer's keys [B, h, S, d_k] and values [B, h, S, d_v] of the source.
            memory_mask: As in `forward`.

        Returns:
            [B, K, d_model], and the keys and values with this position.
        """
        rows = self.self_attention_residual.before(x).reshape(-1, 1, x.size(-1))
        query, key, value = self.self_attention.queries_keys_values(rows)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        if (window := self.self_attention_mask.window) is not None:
            key, value = key[:, :, -window:], value[:, :, -window:]
        attended = self.self_attention.attend(query, key, value, _EVERYWHERE).view_as(x)
        return self._after_self_attention(x, attended, memory, memory_mask), (key, value)

    def _after_self_attention(
        self, x: Tensor, attended: Tensor, memory: KeysValues, memory_mask: AttentionMask
    ) -> Tensor:
        x = self.self_attention_residual.after(x, attended)
        query = self.cross_attention.queries(self.cross_attention_residual.before(x))
        attended = self.cross_attention.attend(query, *memory, memory_mask)
        x = self.cross_attention_residual.after(x, attended)
        fed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, fed)


@dataclass
class TransformerState:
    """Where decoding stands: the source of each sentence, the past of each hypothesis.

    Attributes:
        memory: For each layer, the source's keys and values, [B, h, S, …].
        memory_lengths: [B] source lengths.
        past: For each layer, the keys and values [B·K, h, t, …] of the tokens so far, or of those
            that a window can still see.
        position: Number of tokens so far.
    """

    memory: list[KeysValues]
    memory_lengths: Tensor
    past: list[KeysValues | None]
    position: int = 0

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index among the B·K present hypotheses of each that goes on; those
                in one row belong to one sentence.
        """
        num_sentences = len(self.memory_lengths)
        hypotheses_each = 1 if self.past[0] is None else len(self.past[0][0]) // num_sentences
        if len(rows) < num_sentences:
            sentences = rows[:, 0] // hypotheses_each
            self.memory = [(k[sentences], v[sentences]) for k, v in self.memory]
            self.memory_lengths = self.memory_lengths[sentences]
        flat = rows.flatten()
        self.past = [kv and (kv[0][flat], kv[1][flat]) for kv in self.past]


class Transformer(nn.Module):
    """The encoder-decoder model.

    Args:
        config: Its shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces; with three-way tied embeddings, the same.
    """

    def __init__(
        self, config: TransformerConfig, *, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        source_weight, target_weight, output_weight = new_embedding_weights(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        self.max_positions = config.learned_positions  # the most tokens a side; None is endless
        self.source_embedding, self.target_embedding = (
            Embedding(
                weight,
                dropout=config.embedding_dropout,
                learned_positions=config.learned_positions,
            )
            for weight in (source_weight, target_weight)
        )
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        # Pre-norm leaves the last sums without a norm: add one after each stack.
        final_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = final_norm(config.d_model)
        self.decoder_norm = final_norm(config.d_model)
        self.output_weight = output_weight
        self.attention_window = config.attention_window

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Encode sources.

        Args:
            source: [B, S] token ids, padded at the end.
            lengths: [B] their lengths.

        Returns:
            [B, S, d_model]; what stands at padding means nothing.
        """
        mask = AttentionMask(key_lengths=lengths, window=self.attention_window)
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        out: Tensor = self.encoder_norm(x)
        return out

    def forward(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """Decode with the true target before each position (teacher forcing).

        Args:
            source: [B, S] token ids, padded at the end.
            lengths: [B] source lengths.
            target_input: [B, T] target token ids, moved right by one.

        Returns:
            [B, T, d_model] what `logits` maps to the next token's.
        """
        encoded = self.encode(source, lengths)
        mask = AttentionMask(key_lengths=lengths)
        x = self.target_embedding(target_input)
        for layer in self._decoder_layers():
            x = layer(x, encoded, mask)
        out: Tensor = self.decoder_norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Project […, d_model] to unnormalised log probabilities […, V] (§3.4)."""
        return nn.functional.linear(hidden, self.output_weight)

    def start(self, source: Tensor, lengths: Tensor) -> TransformerState:
        """Encode sources and stand before their first target token, one hypothesis each."""
        encoded = self.encode(source, lengths)
        memory = [each.cross_attention.keys_values(encoded) for each in self._decoder_layers()]
        return TransformerState(memory, lengths, [None] * len(self.decoder))

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        """Take in the newest token of each hypothesis.

        Args:
            tokens: [B, K] token ids.
            state: Where decoding stands; moves on by one.

        Returns:
            [B, K, V] logits of the next token.
        """
        mask = AttentionMask(key_lengths=state.memory_lengths)
        # Hypotheses of a sentence are at the same position: embed them as rows of length one.
        flat = self.target_embedding(tokens.reshape(-1, 1), first_position=state.position)
        x = flat.view(*tokens.shape, -1)
        for index, layer in enumerate(self._decoder_layers()):
            x, state.past[index] = layer.step(x, state.past[index], state.memory[index], mask)
        state.position += 1
        return self.logits(self.decoder_norm(x))

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        return cast("Iterator[DecoderLayer]", iter(self.decoder))
