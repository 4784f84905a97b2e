"""The recurrent baseline: an encoder-decoder with attention.

A bidirectional recurrent encoder (Bahdanau et al. 2015, §3.2) and a recurrent decoder whose top
layer attends to the source (Luong et al. 2015, §3).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tfm.config import RecurrentConfig
from tfm.machine.compute import autocast_dtype
from tfm.model.layers import new_embedding_weights
from tfm.model.packing import Packing
from tfm.model.source_attention import Attended, Memory, SourceAttention

# Each layer's hidden state [N, d_model] and, in an LSTM, cell state [N, d_model].
LayerStates = list[tuple[Tensor, ...]]


class TokenEmbedding(nn.Module):
    """Token embeddings by a matrix [V, d_model], scaled as the Transformer's, with dropout."""

    def __init__(self, weight: nn.Parameter, *, dropout: float) -> None:
        super().__init__()
        self.weight = weight
        self.scale = math.sqrt(weight.size(1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed token ids […] as […, d_model]."""
        return cast("Tensor", self.dropout(F.embedding(tokens, self.weight) * self.scale))


@dataclass
class RecurrentState:
    """The decoding state of K hypotheses for each of B sentences."""

    memory: Memory  # the encoder's output
    layers: LayerStates  # states of the layers, [B·K, d_model]
    # [B·K, d_model] the decoder's output at the newest token; zeros before the first.
    output: Tensor
    position: int = 0  # number of tokens before the next one

    def reorder(self, rows: Tensor) -> None:
        """Replace the hypotheses by some of them [B', K']: see `DecodingState`."""
        num_sentences = len(self.memory.lengths)
        if len(rows) < num_sentences:
            sentences = rows[:, 0] // (len(self.output) // num_sentences)
            self.memory = Memory(*(x[sentences] for x in self.memory))
        flat = rows.flatten()
        self.layers = [tuple(x[flat] for x in state) for state in self.layers]
        self.output = self.output[flat]


class RecurrentDecoder(nn.Module):
    """Recurrent layers, and attention of the top layer to the source.

    The output is tanh(W [attended; x]) (Luong et al. 2015, eq. 5). With input feeding (§3.3) it is
    also an input of the first layer at the next position, so positions are computed one by one.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        d = config.d_model
        input_width = 2 * d if config.input_feeding else d
        self.layers = _new_layers(
            config, config.num_decoder_layers, input_width, d, both_ways=False
        )
        self.attention = SourceAttention(config)
        self.output = nn.Linear(config.encoded_width + d, d)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.input_feeding = config.input_feeding

    def forward(self, x: Tensor, state: RecurrentState) -> Attended:
        """Decode all positions of embedded tokens [B, T, d_model] from the initial state."""
        # On a CPU, torch has no such LSTM in fp16.
        if not self.input_feeding and not (x.is_cpu and autocast_dtype(x) == torch.float16):
            stacked = tuple(torch.stack(layers) for layers in zip(*state.layers, strict=True))
            top, _ = self.layers(x, stacked if len(stacked) > 1 else stacked[0])
            return self._attend(top, state.memory, torch.arange(x.size(1), device=x.device))
        step_weights = self._step_weights()
        output, layers, steps = state.output, state.layers, []
        for position, token_gates in enumerate(self._token_gates(x).unbind(dim=1)):
            top, layers = self._step_layers(token_gates, output, layers, step_weights)
            steps.append(self._attend(top[:, None], state.memory, position))
            output = steps[-1].outputs[:, 0]
        return Attended(*(torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)))

    def step(self, x: Tensor, state: RecurrentState) -> Tensor:
        """Decode the next position of K hypotheses [B, K, d_model], and update their state."""
        gates, weights = self._token_gates(x).flatten(0, 1), self._step_weights()
        top, state.layers = self._step_layers(gates, state.output, state.layers, weights)
        outputs = self._attend(top.view_as(x), state.memory, state.position).outputs
        state.output, state.position = outputs.flatten(0, 1), state.position + 1
        return outputs

    def _attend(self, top: Tensor, memory: Memory, positions: Tensor | int) -> Attended:
        attended: Attended = self.attention(top, memory, positions)
        joined = self.output(torch.cat([attended.outputs, top], dim=-1))
        return attended._replace(outputs=self.dropout(joined.tanh()))

    def _token_gates(self, x: Tensor) -> Tensor:
        """Multiply tokens [B, T, d_model] by their columns of the first layer's input weight."""
        weight, _, bias, _ = self.layers.all_weights[0]
        return F.linear(x, weight[:, : x.size(-1)], bias)

    def _step_weights(self) -> list[Sequence[Tensor]]:
        """Return the layers' weights and biases, the first without the columns of tokens."""
        (weight, *first), *higher = self.layers.all_weights
        return [[weight[:, self.layers.hidden_size :], *first], *higher]

    def _step_layers(
        self,
        token_gates: Tensor,
        output: Tensor,
        states: LayerStates,
        weights: list[Sequence[Tensor]],
    ) -> tuple[Tensor, LayerStates]:
        """Return the top layer's hidden state [N, d_model] at the next position, and all states."""
        input_gates, x, new_states = token_gates, output, []
        for index, state in enumerate(states):
            weight, hidden_weight, bias, hidden_bias = weights[index]
            if index:
                x = F.dropout(x, self.layers.dropout, self.training)
                input_gates = F.linear(x, weight, bias)
            elif self.input_feeding:
                input_gates = token_gates + F.linear(x, weight)
            hidden_gates = F.linear(state[0], hidden_weight, hidden_bias)
            new_state = _next_state(input_gates, hidden_gates, state)
            x = new_state[0]
            new_states.append(new_state)
        return x, new_states


def _next_state(
    input_gates: Tensor, hidden_gates: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Compute the new state of torch's LSTM or GRU from its products [N, 4 or 3 · d_model]."""
    if len(state) == 2:
        into, forget, new, out = (input_gates + hidden_gates).chunk(4, dim=-1)
        cell = forget.sigmoid() * state[1] + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell
    reset_x, update_x, new_x = input_gates.chunk(3, dim=-1)
    reset_h, update_h, new_h = hidden_gates.chunk(3, dim=-1)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return (torch.lerp(new, state[0], (update_x + update_h).sigmoid()),)


def _new_layers(
    config: RecurrentConfig, num_layers: int, input_width: int, width: int, *, both_ways: bool
) -> nn.LSTM | nn.GRU:
    """Create layers, with the width of a direction; each gate is initialized by itself."""
    layers = (nn.LSTM if config.cell == "lstm" else nn.GRU)(
        input_width,
        width,
        num_layers,
        batch_first=True,
        bidirectional=both_ways,
        dropout=config.dropout if num_layers > 1 else 0.0,
    )
    for name, parameter in layers.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if config.cell == "lstm" and name.startswith("bias_ih"):
                nn.init.ones_(parameter[width : 2 * width])  # forget gate: cells start to remember
        else:
            initialize = nn.init.orthogonal_ if "_hh_" in name else nn.init.xavier_uniform_
            for gate in torch.split(parameter, width):
                initialize(gate)
    return layers


class Recurrent(nn.Module):
    """The recurrent encoder-decoder model."""

    max_positions: int | None = None  # sentences may have any length
    output_bias: nn.Parameter | None = None  # of the logits; always without

    def __init__(self, config: RecurrentConfig, vocab_sizes: tuple[int, int]) -> None:
        super().__init__()
        d = config.d_model
        source_weight, target_weight, output_weight = new_embedding_weights(config, vocab_sizes)
        self.source_embedding = TokenEmbedding(source_weight, dropout=config.embedding_dropout)
        self.target_embedding = TokenEmbedding(target_weight, dropout=config.embedding_dropout)
        num_layers, width = config.num_encoder_layers, config.encoded_width
        self.encoder = _new_layers(config, num_layers, d, width // 2, both_ways=True)
        self.dropout = nn.Dropout(config.dropout)
        self.states_per_layer = 2 if config.cell == "lstm" else 1
        initial_width = self.states_per_layer * config.num_decoder_layers * d
        self.bridge = nn.Linear(self.states_per_layer * width, initial_width)
        nn.init.xavier_uniform_(self.bridge.weight)
        nn.init.zeros_(self.bridge.bias)
        self.decoder = RecurrentDecoder(config)
        self.output_weight = output_weight

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, LayerStates]:
        """Encode sources [B, S] of [B] lengths; neither direction runs over padding.

        Returns outputs [B, S, encoded_width], zeros at padding, and the decoder's initial states,
        which the bridge computes from the final states of the top layer.
        """
        embedded = pack_padded_sequence(
            self.source_embedding(source), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        packed, final = self.encoder(embedded)
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.size(1))
        finals = final if isinstance(final, tuple) else (final,)
        # The top layer's forward and backward states [B, encoded_width / 2] side by side.
        joined = torch.cat([direction for x in finals for direction in x[-2:]], dim=-1)
        initial = self.bridge(joined).tanh().chunk(self.decoder.layers.num_layers, dim=-1)
        states = [layer.chunk(self.states_per_layer, dim=-1) for layer in initial]
        return self.dropout(outputs), states

    def forward(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
        """Decode all positions of target inputs [B, T] to [B, T, d_model] (teacher forcing)."""
        return self.decode(source, lengths, target_input).outputs

    def decode(self, source: Tensor, lengths: Tensor, target_input: Tensor) -> Attended:
        """Decode as `forward` does; return the outputs [B, T, d_model] with their attention."""
        state = self.start(source, lengths)
        return cast("Attended", self.decoder(self.target_embedding(target_input), state))

    def decode_packed(
        self, source: Tensor, sources: Packing, target_input: Tensor, targets: Packing
    ) -> tuple[Tensor, Tensor | None]:
        """Decode packed sentences as `forward` does to [num_rows, d_model], by padding them.

        Also return the packed `Attended.samples` [num_rows, 3], if there are any.
        """
        padded = sources.pad(source), sources.device_lengths, targets.pad(target_input)
        outputs, _, samples = self.decode(*padded)
        return targets.pack(outputs), targets.pack(samples) if samples.numel() else None

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Project […, d_model] to unnormalized log probabilities […, V]."""
        return F.linear(hidden_states, self.output_weight)

    def start(self, source: Tensor, lengths: Tensor) -> RecurrentState:
        """Encode sources [B, S] of [B] lengths; return the state of one hypothesis for each."""
        outputs, states = self.encode(source, lengths)
        memory = self.decoder.attention.memory(outputs, lengths)
        return RecurrentState(memory, states, torch.zeros_like(states[0][0]))

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Decode the position after tokens [B, K] to logits, as `tfm.search.model` describes."""
        return self.logits(self.step_hidden(tokens, state)).view(*tokens.shape, -1)

    def step_rows(
        self, tokens: Tensor, state: RecurrentState, rows: Tensor
    ) -> Callable[[slice], Tensor]:
        """Decode as `step` does; return the projection of a slice of rows [R] to logits."""
        hidden = self.step_hidden(tokens, state, rows)
        return lambda part: self.logits(hidden[part])

    def step_hidden(
        self, tokens: Tensor, state: RecurrentState, rows: Tensor | None = None
    ) -> Tensor:
        """Decode as `step` does to the hidden states [B·K or R, d_model], without projection."""
        parts = self.target_embedding(tokens).split(len(state.output) // len(tokens), dim=1)
        hidden = torch.cat([self.decoder.step(x, state) for x in parts], dim=1).flatten(0, 1)
        return hidden if rows is None else hidden[rows]
