"""The Transformer (Vaswani et al. 2017, §3.1)."""

from collections.abc import Iterator
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN, Backend
from tfm.config import TransformerConfig
from tfm.model.attention import Sentences
from tfm.model.cache import DecoderCache, StepRows
from tfm.model.embedding import Embedding, new_embedding_weights
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.single_sentence import SingleSentenceCache


class Transformer(nn.Module):
    """The encoder-decoder model."""

    backend: Backend = PLAIN

    def __init__(
        self, config: TransformerConfig, *, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        source_weight, target_weight, output_weight = new_embedding_weights(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        # Fast decoding supports only dot-product attention without a window.
        self._has_fast_decoding = config.attention == "dot-product" and not config.attention_window
        # The maximum number of tokens of a source or target; None if unlimited.
        self.max_positions = config.learned_positions
        self.source_embedding = Embedding(source_weight, config)
        self.target_embedding = Embedding(target_weight, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        # Pre-norm leaves the last residual sum without a norm: add one after each stack.
        final_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = final_norm(config.d_model)
        self.decoder_norm = final_norm(config.d_model)
        self.output_weight = output_weight

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Encode sources [B, S] of [B] lengths as [B, S, d_model]; padding may hold any values."""
        return self._encode(self.source_embedding(source), lengths)

    def forward(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """Decode all positions, each after the true tokens before it (teacher forcing).

        Maps sources [B, S] of [B] lengths, padded at the end, and targets [B, T], shifted right by
        one, to hidden states [B, T, d_model], which `logits` projects.
        """
        encoded = self.encode(source, lengths)
        return self._decode(self.target_embedding(target_input), encoded, None, lengths)

    @property
    def packs(self) -> bool:
        """Whether the backend computes packed sentences, without padding."""
        return self.backend.packed_attention is not None

    def forward_packed(
        self, source: Tensor, sources: Packing, target_input: Tensor, targets: Packing
    ) -> Tensor:
        """Decode packed tokens [num_rows] to [num_rows, d_model] as `forward` does.

        Sentences are padded meanwhile if the backend does not pack.
        """
        if not self.packs:
            padded = self(sources.pad(source), sources.device_lengths, targets.pad(target_input))
            return targets.pack(padded)
        encoded = self._encode(self.source_embedding.packed(source, sources), sources)
        x = self.target_embedding.packed(target_input, targets)
        return self._decode(x, encoded, targets, sources)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Project […, d_model] to unnormalized log probabilities […, V] (§3.4)."""
        return self.backend.project(hidden_states, self.output_weight)

    def start(self, source: Tensor, lengths: Tensor) -> DecoderCache:
        """Encode sources [B, S] of [B] lengths; return the cache of one hypothesis for each."""
        encoded = self._encode_for_decoding(source, lengths)
        memory = [each.cross_attention.keys_values(encoded) for each in self._decoder_layers()]
        return DecoderCache.for_sources(memory, lengths)

    def step(self, tokens: Tensor, state: DecoderCache, rows: Tensor | None = None) -> Tensor:
        """Decode the position after tokens [B, K] to logits [B, K, V], and add it to the cache.

        With `rows`, [R] indices among the B·K hypotheses, only their logits [R, V] are returned.
        The others may be left out of the computation, and must not be continued.
        """
        is_single = state.num_sentences == state.num_hypotheses == 1 and self._has_fast_decoding
        if is_single and state.position == 0 and self.backend.single_sentence_fast_path:
            state.single = self._single_sentence_cache(state)
            state.memory = []  # folded into the layers
        if state.single is not None:
            embedded = self.target_embedding(tokens.view(-1, 1), first_position=state.position)
            x = state.single.step(embedded[:, 0])
            x = x if rows is None or len(rows) == len(x) else x.index_select(0, rows)
        else:
            x = self._step_batch(tokens, state, rows)
        state.position += 1
        logits = self.logits(self.decoder_norm(x))
        return logits.view(*tokens.shape, -1) if rows is None else logits

    def _step_batch(self, tokens: Tensor, cache: DecoderCache, outputs: Tensor | None) -> Tensor:
        rows = StepRows.of(tokens.numel(), outputs, self.backend)
        newest = tokens.reshape(-1, 1)
        if rows.computed is not None:
            newest = newest.index_select(0, rows.computed)
        x = self.target_embedding(newest, first_position=cache.position)
        x = rows.pad(x.flatten(0, 1))
        cache.begin_step(rows)
        for index, layer in enumerate(self._decoder_layers()):
            x = layer.step(x, cache, index)
        return rows.select_outputs(x)

    def _single_sentence_cache(self, cache: DecoderCache) -> SingleSentenceCache:
        layers = zip(self._decoder_layers(), cache.memory, strict=True)
        return SingleSentenceCache(
            [layer.for_single_sentence(key[0].mT, value[0]) for layer, (key, value) in layers],
            next(self._decoder_layers()).self_attention,
        )

    def _encode_for_decoding(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Encode as `encode` does, without padding if the backend packs."""
        if not self.packs:
            return self.encode(source, lengths)
        if len(lengths) == 1:
            length = source.size(1)
            spare = self.backend.round_up_rows(length) - length
            x = self.source_embedding(F.pad(source, (0, spare)) if spare else source)
            return self._encode(x, lengths if spare else None)[:, :length]
        cpu_lengths = lengths.cpu()
        num_rows = self.backend.round_up_rows(int(cpu_lengths.sum()) + 1)
        packing = Packing(cpu_lengths, num_rows, source.device)
        tokens = packing.pack(source[:, : packing.longest])
        x = self.source_embedding.packed(tokens, packing)
        return packing.pad(self._encode(x, packing))

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
