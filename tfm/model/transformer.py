"""The Transformer (Vaswani et al. 2017, §3.1 and §3.3)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.kernels.operations import PLAIN, Operations
from tfm.kernels.packing import Packing
from tfm.model.attention import AttentionMask, MultiHeadAttention, Sentences
from tfm.model.embedding import Embedding, new_embedding_weights

_EVERYWHERE = AttentionMask()


class Residual(nn.Module):
    """The residual connection, dropout and layer normalisation around a sub-layer (§3.1).

    Post-norm, as in the paper: LayerNorm(x + Dropout(sublayer(x))).
    Pre-norm: x + Dropout(sublayer(LayerNorm(x))).
    """

    operations: Operations = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = config.dropout
        self.norm_first = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer is given, for x […, d_model]."""
        given: Tensor = self.norm(x) if self.norm_first else x
        return given

    def after(self, x: Tensor, hidden: Tensor, output: nn.Linear) -> Tensor:
        """Add the sub-layer to x […, d_model].

        Args:
            x: What the sub-layer started from.
            hidden: […, in] the sub-layer but for its last projection.
            output: That projection.
        """
        dropout = self.dropout if self.training else 0.0
        summed = self.operations.add_linear_dropout(x, hidden, output.weight, output.bias, dropout)
        return summed if self.norm_first else cast("Tensor", self.norm(summed))


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at each position (§3.3)."""

    operations: Operations = PLAIN

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = config.relu_dropout
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map […, d_model] to […, d_ff], which `outer` projects back."""
        dropout = self.dropout if self.training else 0.0
        inner = self.inner
        return self.operations.linear_relu_dropout(x, inner.weight, inner.bias, dropout)


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
        attended = self.self_attention.within(
            self.self_attention_residual.before(x), sentences, window=self.attention_window
        )
        x = self.self_attention_residual.after(x, attended, self.self_attention.output)
        fed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, fed, self.feed_forward.outer)


KeysValues = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """Self-attention to what came before, attention to the source, a feed-forward network."""

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
        """Decode all positions at once.

        Args:
            x: [B, T, d_model], or packed [num_rows, d_model].
            encoded: What the encoder made of the sources.
            targets: Where the sentences of x are.
            sources: Where their sources are.

        Returns:
            The same shape as x.
        """
        attended = self.self_attention.within(
            self.self_attention_residual.before(x),
            targets,
            causal=True,
            window=self.attention_window,
        )
        x = self.self_attention_residual.after(x, attended, self.self_attention.output)
        attended = self.cross_attention.across(
            self.cross_attention_residual.before(x), encoded, targets, sources
        )
        return self._after_attention(x, attended)

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
        if (window := self.attention_window) is not None:
            key, value = key[:, :, -window:], value[:, :, -window:]
        attended = self.self_attention.attend(query, key, value, _EVERYWHERE)
        attended = attended.view(*x.shape[:2], -1)
        x = self.self_attention_residual.after(x, attended, self.self_attention.output)
        query = self.cross_attention.queries(self.cross_attention_residual.before(x))
        attended = self.cross_attention.attend(query, *memory, memory_mask)
        return self._after_attention(x, attended), (key, value)

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.cross_attention_residual.after(x, attended, self.cross_attention.output)
        fed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, fed, self.feed_forward.outer)


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

    operations: Operations = PLAIN

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

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Encode sources.

        Args:
            source: [B, S] token ids, padded at the end.
            lengths: [B] their lengths.

        Returns:
            [B, S, d_model]; what stands at padding means nothing.
        """
        return self._encode(self.source_embedding(source), lengths)

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
        return self._decode(self.target_embedding(target_input), encoded, None, lengths)

    @property
    def packs(self) -> bool:
        """Whether its operations are such that it is better off without padding."""
        return self.operations.packed_attention is not None

    def forward_packed(
        self, source: Tensor, sources: Packing, target_input: Tensor, targets: Packing
    ) -> Tensor:
        """Do the same without padding.

        Args:
            source: [num_rows of the sources] token ids.
            sources: Packing of the sources.
            target_input: [num_rows of the targets] token ids, those of each sentence moved right
                by one.
            targets: Packing of the targets.

        Returns:
            [num_rows of the targets, d_model].
        """
        encoded = self._encode(self.source_embedding.packed(source, sources), sources)
        x = self.target_embedding.packed(target_input, targets)
        return self._decode(x, encoded, targets, sources)

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

    def _encode(self, x: Tensor, sentences: Sentences) -> Tensor:
        for layer in self.encoder:
            x = layer(x, sentences)
        out: Tensor = self.encoder_norm(x)
        return out

    def _decode(self, x: Tensor, encoded: Tensor, targets: Sentences, sources: Sentences) -> Tensor:
        for layer in self.decoder:
            x = layer(x, encoded, targets, sources)
        out: Tensor = self.decoder_norm(x)
        return out

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        return cast("Iterator[DecoderLayer]", iter(self.decoder))
