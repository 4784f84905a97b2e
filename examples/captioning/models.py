"""Captioners: tfm's models with a picture encoder in place of the source's."""

from dataclasses import replace
from typing import Literal, get_args

import torch
from pictures import NUM_PLACES, VOCABULARY_SIZE
from torch import Tensor, nn

from tfm.config import RecurrentConfig, TransformerConfig
from tfm.model.packing import Layout
from tfm.model.recurrent import LayerStates, Recurrent
from tfm.model.transformer import Transformer

CaptionerName = Literal["recurrent", "hard", "transformer", "without-attention"]
CAPTIONERS: tuple[CaptionerName, ...] = get_args(CaptionerName)
GRID_SIZE = NUM_PLACES  # cells per side, as the convolutions halve a side of 32 pixels thrice
_D_MODEL = 64
_NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
_SHARED = _NO_DROPOUT | {"d_model": _D_MODEL, "num_encoder_layers": 1}  # which is not used
RECURRENT = RecurrentConfig(num_decoder_layers=1, attention="additive", **_SHARED)
TRANSFORMER = TransformerConfig(
    num_decoder_layers=2, d_ff=2 * _D_MODEL, num_heads=4, norm="pre", **_SHARED
)
_SIZES = VOCABULARY_SIZE, VOCABULARY_SIZE


def new_captioner(name: CaptionerName) -> "RecurrentCaptioner | TransformerCaptioner":
    """Return a captioner with random weights."""
    if name == "transformer":
        return TransformerCaptioner()
    config = replace(RECURRENT, source_attention="hard" if name == "hard" else "soft")
    return RecurrentCaptioner(config, pooled=name == "without-attention")


class PictureEncoder(nn.Module):
    """Convolutions from a picture to a grid of annotations, which know their place."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_convolution(3, 16), *_convolution(16, 32), *_convolution(32, _D_MODEL)
        )
        self.positions = nn.Parameter(torch.randn(GRID_SIZE**2, _D_MODEL))
        self.input = nn.Linear(_D_MODEL, _D_MODEL)
        self.output = nn.Linear(_D_MODEL, _D_MODEL)

    def forward(self, pictures: Tensor) -> Tensor:
        """Map pictures [B, 3, height, width] from 0 to 1 to annotations [B, cells, d_model]."""
        grid = self.convolutions(pictures).flatten(2).mT
        out: Tensor = self.output((self.input(grid) + self.positions).relu())
        return out


def _convolution(num_inputs: int, num_outputs: int) -> list[nn.Module]:
    convolution = nn.Conv2d(num_inputs, num_outputs, 3, stride=2, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(num_outputs), nn.ReLU()]


class TransformerCaptioner(Transformer):
    """tfm's Transformer decoder, whose cross-attention sees the grid of a picture."""

    def __init__(self) -> None:
        super().__init__(TRANSFORMER, _SIZES)
        del self.source_embedding, self.encoder
        self.picture_encoder = PictureEncoder()

    def encode(self, source: Tensor, sources: Layout) -> Tensor:
        """Encode pictures [B, 3, height, width] as [B, cells, d_model]."""
        out: Tensor = self.encoder_norm(self.picture_encoder(source))
        return out


class RecurrentCaptioner(Recurrent):
    """tfm's recurrent decoder with additive attention to the grid of a picture.

    The initial states are computed from the mean of the grid (Xu et al. 2015, §3.1.2). If `pooled`,
    that mean is also all that the decoder can attend to.
    """

    def __init__(self, config: RecurrentConfig, *, pooled: bool = False) -> None:
        super().__init__(config, _SIZES)
        del self.source_embedding, self.encoder
        self.picture_encoder = PictureEncoder()
        self.bridge = nn.Linear(_D_MODEL, self.states_per_layer * _D_MODEL)
        self.pooled = pooled

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, LayerStates]:
        """Encode pictures [B, 3, height, width] as [B, cells, d_model], and as initial states."""
        annotations = self.picture_encoder(source)
        mean = annotations.mean(dim=1, keepdim=True)
        initial = self.bridge(mean[:, 0]).tanh().chunk(self.states_per_layer, dim=-1)
        return mean if self.pooled else annotations, [initial]
