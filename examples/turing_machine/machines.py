"""Three machines of about equal size: a neural Turing machine, an LSTM and a Transformer.

Each maps inputs [B, T, inputs] to logits [B, T, bits].
"""

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfm.config import TransformerConfig
from tfm.model.attention import sinusoidal_encoding
from tfm.model.layers import EncoderLayer
from tfm.model.packing import Padded
from tfm.model.transformer import Encoder

MachineName = Literal["turing-machine", "lstm", "transformer"]
MACHINES: tuple[MachineName, ...] = get_args(MachineName)

_CONTROLLER_SIZE = 100
_NUM_ROWS, _ROW_SIZE = 128, 20  # the paper's memory
_NUM_TRAINING_ROWS = 40  # about as many as the longest training sequence has steps
_NUM_SHIFTS = 3  # one row back, none, or one forward
_HEADS = 2  # one reads, one writes
# Other machines get the sizes with which they have about as many parameters.
_LSTM_SIZE = 118
_TRANSFORMER = TransformerConfig(
    num_encoder_layers=4, d_model=40, d_ff=112, num_heads=4, norm="pre", dropout=0.0
)


def new_machine(name: MachineName, num_inputs: int, num_outputs: int) -> nn.Module:
    """Return a machine with random weights."""
    match name:
        case "turing-machine":
            return TuringMachine(num_inputs, num_outputs)
        case "lstm":
            return LSTM(num_inputs, num_outputs)
        case "transformer":
            return Transformer(num_inputs, num_outputs)


class Trace(NamedTuple):
    """What the heads of one sequence did: [T, rows] weights of reading and of writing."""

    reads: Tensor
    writes: Tensor


class TuringMachine(nn.Module):
    """An LSTM that reads and writes a memory by attention (Graves et al. 2014, §3).

    The memory starts with a small constant, and heads on its first row (Collier and Beel 2018 found
    a constant to learn fastest). Parameters do not depend on the number of rows: training takes
    fewer, which saves time.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.controller = nn.LSTMCell(num_inputs + _ROW_SIZE, _CONTROLLER_SIZE)
        # For each head: key, its strength β, gate g, shifts s and sharpness γ; then what is erased
        # and what is added.
        self.sizes = [_ROW_SIZE, 1, 1, _NUM_SHIFTS, 1]
        self.to_heads = nn.Linear(_CONTROLLER_SIZE, _HEADS * sum(self.sizes) + 2 * _ROW_SIZE)
        self.to_output = nn.Linear(_CONTROLLER_SIZE + _ROW_SIZE, num_outputs)
        with torch.no_grad():  # the controller remembers at first
            self.controller.bias_hh.chunk(4)[1].add_(1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, T, inputs] to logits [B, T, bits]."""
        return self.run(inputs)[0]

    def run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [B, T, bits], and where heads look, [B, T, 2, rows]."""
        batch_size = len(inputs)
        hidden = cell = inputs.new_zeros(batch_size, _CONTROLLER_SIZE)
        num_rows = _NUM_TRAINING_ROWS if self.training else _NUM_ROWS
        memory = inputs.new_full((batch_size, num_rows, _ROW_SIZE), 1e-6)
        weights = inputs.new_zeros(batch_size, _HEADS, num_rows)
        weights[..., 0] = 1.0
        read = inputs.new_zeros(batch_size, _ROW_SIZE)
        states, history = [], []
        for x in inputs.unbind(1):
            hidden, cell = self.controller(torch.cat([x, read], dim=1), (hidden, cell))
            by_head, erase, add = self.to_heads(hidden).split(
                [_HEADS * sum(self.sizes), _ROW_SIZE, _ROW_SIZE], dim=1
            )
            weights = self._address(by_head.view(batch_size, _HEADS, -1), memory, weights)
            # M ← M + w (a − e M) (equations 3 and 4), then r = w M (equation 2).
            written = weights[:, 1, :, None]
            change = torch.addcmul(add[:, None], erase.sigmoid()[:, None], memory, value=-1)
            memory = torch.addcmul(memory, written, change)
            read = torch.bmm(weights[:, :1], memory).squeeze(1)
            states.append(torch.cat([hidden, read], dim=1))
            history.append(weights)
        return self.to_output(torch.stack(states, dim=1)), torch.stack(history, dim=1)

    def _address(self, heads: Tensor, memory: Tensor, previous: Tensor) -> Tensor:
        """Return where heads [B, 2, …] look, [B, 2, rows], given where they looked (§3.3)."""
        key, strength, gate, shifts, sharpness = heads.split(self.sizes, dim=2)
        scaled = F.softplus(strength) * F.normalize(key, dim=2)
        lengths = memory.norm(dim=2).clamp(min=1e-6)
        scores = torch.bmm(scaled, memory.mT) / lengths[:, None]  # β times the cosine
        by_content = scores.softmax(dim=2)  # equations 5 and 6
        mixed = torch.lerp(previous, by_content, gate.sigmoid())  # equation 7
        back, stay, forward = shifts.softmax(dim=2).split(1, dim=2)  # equation 8, on a circle
        shifted = back * mixed.roll(-1, 2) + stay * mixed + forward * mixed.roll(1, 2)
        exponents = 1 + F.softplus(sharpness)
        return (exponents * (shifted + 1e-9).log()).softmax(dim=2)  # equation 9, by logarithms

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> Trace:
        """Return where the heads look while they process one sequence [1, T, inputs]."""
        weights = self.run(inputs)[1][0]
        return Trace(weights[:, 0], weights[:, 1])


class LSTM(nn.Module):
    """One layer of LSTM cells."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(num_inputs, _LSTM_SIZE, batch_first=True)
        self.to_output = nn.Linear(_LSTM_SIZE, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, T, inputs] to logits [B, T, bits]."""
        out: Tensor = self.to_output(self.cells(inputs)[0])
        return out


class Transformer(nn.Module):
    """tfm's encoder, which sees the whole input at once, with sinusoidal positions."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        config = _TRANSFORMER
        self.from_input = nn.Linear(num_inputs, config.d_model)
        self.encoder = Encoder(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.to_output = nn.Linear(config.d_model, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, T, inputs] to logits [B, T, bits]."""
        length = inputs.size(1)
        x = self.from_input(inputs)
        x = x + sinusoidal_encoding(torch.arange(length), x.size(-1))
        out: Tensor = self.to_output(self.norm(self.encoder(x, Padded(length))))
        return out
