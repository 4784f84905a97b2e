"""The recurrent baseline: encoder, decoder, and attention between them.

A bidirectional recurrent encoder (Bahdanau et al. 2015, §3.2) and a recurrent decoder whose top
layer attends to the source (Luong et al. 2015, §3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tfm.backends.packing import Packing
from tfm.backends.plain import PLAIN, Backend
from tfm.config import RecurrentConfig
from tfm.model.additive import new_additive_weight
from tfm.model.attention import AttentionMask, attention_weights
from tfm.model.embedding import new_embedding_weights

# Of each layer: the hidden state [N, d_model], and an LSTM's cell of the same shape.
LayerStates = list[tuple[Tensor, ...]]


class TokenEmbedding(nn.Module):
    """Token embeddings scaled as the Transformer's, with dropout; recurrence knows positions.

    Args:
        weight: [V, d_model] the embedding matrix, which may be shared.
        dropout: Probability of dropping an element.
    """

    def __init__(self, weight: nn.Parameter, *, dropout: float) -> None:
        super().__init__()
        self.weight = weight
        self.scale = math.sqrt(weight.size(1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed token ids […] as […, d_model]."""
        embedded: Tensor = self.dropout(F.embedding(tokens, self.weight) * self.scale)
        return embedded


class Memory(NamedTuple):
    """What the encoder hands over of each step of the source.

    Attributes:
        keys: [B, 1, S, d_model] its outputs, as queries are compared with them.
        values: [B, 1, S, d_model] its outputs.
        lengths: [B] source lengths; nothing beyond them is attended to.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor


class SourceAttention(nn.Module):
    """Attention of the decoder to the encoder's outputs, which are keys and values in one.

    Scores are kᵀ W_q q / √d_model (Luong et al. 2015, §3.1, "general", scaled), or
    vᵀ tanh(W_q q + W_k k) (Bahdanau et al. 2015, A.1.2).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        d = config.d_model
        self.dropout = nn.Dropout(config.attention_dropout)
        self.query = nn.Linear(d, d, bias=False)
        nn.init.xavier_uniform_(self.query.weight)
        self.key: nn.Linear | nn.Identity = nn.Identity()
        self.additive_weight: nn.Parameter | None = None
        if config.attention == "additive":
            self.key = nn.Linear(d, d, bias=False)
            nn.init.xavier_uniform_(self.key.weight)
            self.additive_weight = new_additive_weight(1, d)

    def memory(self, encoded: Tensor, lengths: Tensor) -> Memory:
        """Prepare the encoder's outputs [B, S, d_model] of [B] lengths for all queries to come."""
        return Memory(self.key(encoded)[:, None], encoded[:, None], lengths)

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, d_model] the decoder's top layer.
            memory: The source.

        Returns:
            [B, T, d_model] what was attended to, and [B, T, S] by which weights, before dropout.
        """
        weights = attention_weights(
            self.query(x)[:, None],
            memory.keys,
            AttentionMask(key_lengths=memory.lengths),
            additive_weight=self.additive_weight,
        )
        attended = self.dropout(weights).to(memory.values.dtype) @ memory.values
        return attended[:, 0], weights[:, 0]


class RecurrentDecoder(nn.Module):
    """Recurrent layers, attention of the uppermost, and what comes of both.

    The output tanh(W [attended; x]) (Luong et al. 2015, eq. 5) is, with input feeding, also part
    of the first layer's next input (§3.3): then positions follow one another, in training too.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        d = config.d_model
        self.layers = _new_layers(
            config,
            num_layers=config.num_decoder_layers,
            input_width=2 * d if config.input_feeding else d,
            bidirectional=False,
        )
        self.attention = SourceAttention(config)
        self.output = nn.Linear(2 * d, d)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.input_feeding = config.input_feeding

    def forward(self, x: Tensor, states: LayerStates, memory: Memory) -> tuple[Tensor, Tensor]:
        """Decode all positions.

        Args:
            x: [B, T, d_model] embedded tokens.
            states: Of each layer, before the first position.
            memory: The source.

        Returns:
            [B, T, d_model] outputs, and [B, T, S] attention weights.
        """
        if not self.input_feeding:
            together = tuple(torch.stack(parts) for parts in zip(*states, strict=True))
            top, _ = self.layers(x, together if len(together) > 1 else together[0])
            return self._attend(top, memory)
        step_weights = self._step_weights()
        output, steps = torch.zeros_like(x[:, 0]), []
        for from_token in self._from_tokens(x).unbind(dim=1):
            top, states = self._next_states(from_token, output, states, step_weights)
            steps.append(self._attend(top[:, None], memory))
            output = steps[-1][0][:, 0]
        outputs, weights = zip(*steps, strict=True)
        return torch.cat(outputs, dim=1), torch.cat(weights, dim=1)

    def step(
        self, x: Tensor, output: Tensor, states: LayerStates, memory: Memory
    ) -> tuple[Tensor, LayerStates]:
        """Decode the next position of K hypotheses for each of B sentences.

        Args:
            x: [B, K, d_model] embedded tokens.
            output: [B·K, d_model] of the position before; zeros at the first.
            states: Of each layer, [B·K, d_model].
            memory: The source, which hypotheses of a sentence share.

        Returns:
            [B, K, d_model] outputs, and the states after this position.
        """
        from_tokens = self._from_tokens(x).flatten(0, 1)
        top, states = self._next_states(from_tokens, output, states, self._step_weights())
        outputs, _ = self._attend(top.view_as(x), memory)
        return outputs, states

    def _attend(self, top: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        attended, weights = self.attention(top, memory)
        joined = self.output(torch.cat([attended, top], dim=-1))
        return self.dropout(joined.tanh()), weights

    def _from_tokens(self, x: Tensor) -> Tensor:
        """The tokens' share of the first layer's products with its input, bias included."""
        weight, _, bias, _ = self.layers.all_weights[0]
        return F.linear(x, weight[:, : x.size(-1)], bias)

    def _step_weights(self) -> list[Sequence[Tensor]]:
        """Weights and biases of each layer, of the first without what meets tokens."""
        (weight, *others), *higher = self.layers.all_weights
        return [[weight[:, self.layers.hidden_size :], *others], *higher]

    def _next_states(
        self,
        from_token: Tensor,
        output: Tensor,
        states: LayerStates,
        weights: list[Sequence[Tensor]],
    ) -> tuple[Tensor, LayerStates]:
        """Take every layer one position on, from N rows of `_from_tokens` and last outputs.

        Returns:
            [N, d_model] the uppermost hidden state, and the new states.
        """
        cell = _lstm_cell if isinstance(self.layers, nn.LSTM) else _gru_cell
        from_input, x, new_states = from_token, output, []
        for index, state in enumerate(states):
            weight, hidden_weight, bias, hidden_bias = weights[index]
            if index:
                x = F.dropout(x, self.layers.dropout, self.training)
                from_input = F.linear(x, weight, bias)
            elif self.input_feeding:
                from_input = from_token + F.linear(x, weight)
            new_state = cell(from_input, F.linear(state[0], hidden_weight, hidden_bias), state)
            x = new_state[0]
            new_states.append(new_state)
        return x, new_states


def _lstm_cell(
    from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The gates of torch.nn.LSTM, given their two products [N, 4 d_model]."""
    into, forget, new, out = (from_input + from_hidden).chunk(4, dim=-1)
    cell = forget.sigmoid() * state[1] + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru_cell(
    from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The gates of torch.nn.GRU, given their two products [N, 3 d_model]."""
    gates = zip(from_input.chunk(3, dim=-1), from_hidden.chunk(3, dim=-1), strict=True)
    (reset_x, reset_h), (keep_x, keep_h), (new_x, new_h) = gates
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return (torch.lerp(new, state[0], (keep_x + keep_h).sigmoid()),)


def _new_layers(
    config: RecurrentConfig, *, num_layers: int, input_width: int, bidirectional: bool
) -> nn.LSTM | nn.GRU:
    """Recurrent layers with d_model outputs, whose gates start alike and whose cells remember."""
    width = config.d_model // 2 if bidirectional else config.d_model
    kind = nn.LSTM if config.cell == "lstm" else nn.GRU
    layers = kind(
        input_width,
        width,
        num_layers,
        batch_first=True,
        bidirectional=bidirectional,
        dropout=config.dropout if num_layers > 1 else 0.0,
    )
    for name, parameter in layers.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if config.cell == "lstm" and name.startswith("bias_ih"):
                nn.init.ones_(parameter[width : 2 * width])  # of the forget gate
        else:
            initialize = nn.init.orthogonal_ if "_hh_" in name else nn.init.xavier_uniform_
            for gate in torch.split(parameter, width):
                initialize(gate)
    return layers


@dataclass
class RecurrentState:
    """Where decoding stands: the source of each sentence, the layers of each hypothesis.

    Attributes:
        memory: The source.
        layers: Of each layer, its states [B·K, d_model].
        output: [B·K, d_model] what the decoder made of the newest token; zeros before the first.
    """

    memory: Memory
    layers: LayerStates
    output: Tensor

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index among the B·K present hypotheses of each that goes on; those
                in one row belong to one sentence.
        """
        num_sentences = len(self.memory.lengths)
        if len(rows) < num_sentences:
            sentences = rows[:, 0] // (len(self.output) // num_sentences)
            self.memory = Memory(*(part[sentences] for part in self.memory))
        flat = rows.flatten()
        self.layers = [tuple(part[flat] for part in state) for state in self.layers]
        self.output = self.output[flat]


class Recurrent(nn.Module):
    """The encoder-decoder model.

    Args:
        config: Its shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces; with three-way tied embeddings, the same.
    """

    max_positions: int | None = None  # sentences may have any length
    backend: Backend = PLAIN  # of the loss; the layers are torch's
    packs = False  # its batches are padded

    def __init__(
        self, config: RecurrentConfig, *, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        d = config.d_model
        source_weight, target_weight, output_weight = new_embedding_weights(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        self.source_embedding = TokenEmbedding(source_weight, dropout=config.embedding_dropout)
        self.target_embedding = TokenEmbedding(target_weight, dropout=config.embedding_dropout)
        self.encoder = _new_layers(
            config, num_layers=config.num_encoder_layers, input_width=d, bidirectional=True
        )
        self.dropout = nn.Dropout(config.dropout)
        self.state_parts = 2 if config.cell == "lstm" else 1
        final_width = self.state_parts * d
        self.bridge = nn.Linear(final_width, config.num_decoder_layers * final_width)
        nn.init.xavier_uniform_(self.bridge.weight)
        nn.init.zeros_(self.bridge.bias)
        self.decoder = RecurrentDecoder(config)
        self.output_weight = output_weight

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, LayerStates]:
        """Encode sources, each direction over its own tokens only.

        Args:
            source: [B, S] token ids, padded at the end.
            lengths: [B] their lengths.

        Returns:
            [B, S, d_model] outputs at every step, zeros at padding; and, made of the uppermost
            layer's final states in both directions, the decoder's initial states.
        """
        embedded = pack_padded_sequence(
            self.source_embedding(source), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        packed, final = self.encoder(embedded)
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.size(1))
        parts = final if isinstance(final, tuple) else (final,)
        # Of the uppermost layer: forward and backward states of each part, side by side.
        joined = torch.cat([direction for part in parts for direction in part[-2:]], dim=-1)
        initial = self.bridge(joined).tanh().chunk(self.decoder.layers.num_layers, dim=-1)
        states = [layer.chunk(self.state_parts, dim=-1) for layer in initial]
        return self.dropout(outputs), states

    def forward(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """Decode with the true target before each position (teacher forcing).

        Args:
            source: [B, S] token ids, padded at the end.
            lengths: [B] source lengths.
            target_input: [B, T] target token ids, moved right by one.

        Returns:
            [B, T, d_model] what `logits` maps to the next token's.
        """
        return self._decode(source, lengths, target_input)[0]

    def forward_packed(
        self, source: Tensor, sources: Packing, target_input: Tensor, targets: Packing
    ) -> Tensor:
        """Do the same for packed sentences, by padding them; see `Transformer.forward_packed`."""
        padded = self(sources.pad(source), sources.device_lengths, targets.pad(target_input))
        return targets.pack(padded)

    def attention_weights(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """[B, T, S] the weights by which `forward` attends to the source, before their dropout."""
        return self._decode(source, lengths, target_input)[1]

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Project […, d_model] to unnormalized log probabilities […, V]."""
        return F.linear(hidden_states, self.output_weight)

    def start(self, source: Tensor, lengths: Tensor) -> RecurrentState:
        """Encode sources and stand before their first target token, one hypothesis each."""
        outputs, states = self.encode(source, lengths)
        memory = self.decoder.attention.memory(outputs, lengths)
        return RecurrentState(memory, states, torch.zeros_like(states[0][0]))

    def step(self, tokens: Tensor, state: RecurrentState, rows: Tensor | None = None) -> Tensor:
        """Take in the newest token of each hypothesis.

        Args:
            tokens: [B, K] token ids.
            state: Where decoding stands; moves on by one.
            rows: [R] index among the B·K hypotheses of those that are asked for.

        Returns:
            [B, K, V] logits of the next token; of some hypotheses, [R, V].
        """
        x = self.target_embedding(tokens)
        outputs, state.layers = self.decoder.step(x, state.output, state.layers, state.memory)
        state.output = outputs.flatten(0, 1)
        return self.logits(outputs if rows is None else state.output[rows])

    def _decode(
        self, source: Tensor, lengths: Tensor, target_input: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs, states = self.encode(source, lengths)
        memory = self.decoder.attention.memory(outputs, lengths)
        result: tuple[Tensor, Tensor] = self.decoder(
            self.target_embedding(target_input), states, memory
        )
        return result
