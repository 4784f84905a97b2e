"""The Transformer (Vaswani et al. 2017, §3.1 and §3.3)."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.kernels.operations import PLAIN, Operations
from tfm.kernels.packing import Packing
from tfm.model.attention import MultiHeadAttention, Sentences
from tfm.model.decoding import Step, StepRows, TransformerState
from tfm.model.embedding import Embedding, new_embedding_weights
from tfm.model.one_sentence import SentenceLayer, SentencePast, as_function


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
        # Weights stay as torch draws them, from ±1/√fan_in: with Glorot's rule it learns later.
        for linear in (self.inner, self.outer):
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

    def step(self, x: Tensor, rows: StepRows, index: int) -> Tensor:
        """Decode the next position of hypotheses.

        Args:
            x: [R, d_model].
            rows: Whose they are; their states take in this position's keys and values.
            index: Number of this layer.

        Returns:
            [R, d_model].
        """
        attention, residual = self.self_attention, self.self_attention_residual
        attended = []
        for step, projected in rows.parted(attention.project(residual.before(x))):
            state = step.state
            query, key, value = attention.split_heads(projected, state.num_groups)
            past = state.extend(index, key, value, self.attention_window)
            attended.append(step.computed(attention.attend_hidden(query, *past)))
        x = residual.after(x, rows.joined(attended), attention.output)
        attention, residual = self.cross_attention, self.cross_attention_residual
        attended = []
        for step, projected in rows.parted(attention.project_queries(residual.before(x))):
            state = step.state
            query = attention.heads(projected, state.num_sentences)
            seen = attention.attend_hidden(query, *state.memory[index], state.hidden_memory)
            attended.append(step.computed(seen))
        return self._after_attention(x, rows.joined(attended))

    def for_sentence(self, key: Tensor, value: Tensor) -> SentenceLayer:
        """Make ready for one sentence.

        Args:
            key: [h, S, d_k] of its source.
            value: [h, S, d_v].
        """
        attention, feed_forward = self.self_attention, self.feed_forward
        linears = (attention.input, attention.output, feed_forward.inner, feed_forward.outer)
        projection, output, inner, outer = (
            attention.operations.ready_product(linear.weight, linear.bias) for linear in linears
        )
        return SentenceLayer(
            norms=(
                as_function(self.self_attention_residual.norm),
                as_function(self.cross_attention_residual.norm),
                as_function(self.feed_forward_residual.norm),
            ),
            norm_first=self.self_attention_residual.norm_first,
            projection=projection,
            output=output,
            source=self.cross_attention.to_source(key, value),
            inner=inner,
            outer=outer,
        )

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.cross_attention_residual.after(x, attended, self.cross_attention.output)
        fed = self.feed_forward(self.feed_forward_residual.before(x))
        return self.feed_forward_residual.after(x, fed, self.feed_forward.outer)


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
        self.attends_plainly = config.attention == "dot-product" and not config.attention_window
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
        return self.operations.project(hidden, self.output_weight)

    def start(self, source: Tensor, lengths: Tensor) -> TransformerState:
        """Encode sources and stand before their first target token, one hypothesis each."""
        encode = self._encode_without_padding if self.packs else self.encode
        encoded = encode(source, lengths)
        memory = [each.cross_attention.keys_values(encoded) for each in self._decoder_layers()]
        return TransformerState.before_first(memory, lengths)

    def step(self, tokens: Tensor, state: TransformerState, rows: Tensor | None = None) -> Tensor:
        """Take in the newest token of each hypothesis.

        Args:
            tokens: [B, K] token ids.
            state: Where decoding stands; moves on by one.
            rows: [R] index among the B·K hypotheses of those that are asked for; the others need
                not be computed, and nothing that goes on may come from them.

        Returns:
            [B, K, V] logits of the next token; of some hypotheses, [R, V].
        """
        logits = self.step_together([(tokens, state, rows)])
        return logits.view(*tokens.shape, -1) if rows is None else logits

    def step_together(
        self, each_step: Sequence[tuple[Tensor, TransformerState, Tensor | None]]
    ) -> Tensor:
        """Take several steps at a time, which have their matrix products in common.

        Args:
            each_step: Tokens, state and rows as of `step`.

        Returns:
            [R, V] logits of the hypotheses that are asked for, step by step.
        """
        if len(each_step) == 1:
            [(_, state, _)] = each_step
            if self._may_leave(state):
                self._leave_alone(state)
            if state.alone is not None:
                return self._step_by_itself(state.alone, *each_step[0])
        if any(state.alone is not None for _, state, _ in each_step):
            return torch.cat([self.step_together([each]) for each in each_step])
        worth_computing = self.operations.worth_computing
        steps = [Step.of(*each, worth_computing) for each in each_step]
        rows = StepRows(steps, self.operations.num_rows)
        for each in steps:
            each.state.begin_step()
        x = rows.joined(
            self.target_embedding(
                each.computed(each.tokens.reshape(-1, 1)), first_position=each.state.position
            ).flatten(0, 1)
            for each in steps
        )
        for index, layer in enumerate(self._decoder_layers()):
            x = layer.step(x, rows, index)
        for each in steps:
            each.state.end_step()
        return self.logits(self.decoder_norm(rows.asked_for(x)))

    def _may_leave(self, state: TransformerState) -> bool:
        """Whether it is one sentence before its first step, and better decoded by itself."""
        return (
            state.num_sentences == state.num_hypotheses == 1
            and state.position == 0
            and self.operations.few_at_a_time
            and self.attends_plainly
        )

    def _leave_alone(self, state: TransformerState) -> None:
        layers = list(self._decoder_layers())
        state.alone = SentencePast(
            [
                layer.for_sentence(key[0].mT, value[0])
                for layer, (key, value) in zip(layers, state.memory, strict=True)
            ],
            num_heads=layers[0].self_attention.num_heads,
            widths=layers[0].self_attention.widths,
            num_rows=self.operations.num_rows,
        )
        state.memory = []  # it is in the layers now

    def _step_by_itself(
        self, past: SentencePast, tokens: Tensor, state: TransformerState, rows: Tensor | None
    ) -> Tensor:
        embedded = self.target_embedding(tokens.view(-1, 1), first_position=state.position)
        x = past.step(embedded[:, 0])
        state.end_step()
        if rows is not None and rows.numel() < x.size(0):
            x = x.index_select(0, rows)
        return self.logits(self.decoder_norm(x))

    def _encode_without_padding(self, source: Tensor, lengths: Tensor) -> Tensor:
        """The same as `encode`."""
        if len(lengths) == 1:
            length = source.size(1)
            spare = self.operations.num_rows(length) - length
            x = self.source_embedding(F.pad(source, (0, spare)) if spare else source)
            return self._encode(x, lengths if spare else None)[:, :length]
        on_cpu = lengths.cpu()
        num_rows = self.operations.num_rows(int(on_cpu.sum()) + 1)
        packing = Packing(on_cpu, num_rows, source.device)
        tokens = packing.gather(source[:, : packing.longest])
        x = self.source_embedding.packed(tokens, packing)
        return packing.spread(self._encode(x, packing))

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
