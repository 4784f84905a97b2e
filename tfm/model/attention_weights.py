"""Record the attention weights of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from tfm.model.attention import Heads, MultiHeadAttention, attention_weights
from tfm.model.build import Model, evaluation_copy
from tfm.model.masks import AttentionMask
from tfm.model.recurrent import Recurrent


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """Attention weights of all L layers and h heads; they sum to 1 over the keys.

    Those of a recurrent model's attention local-p sum to at most 1.
    """

    # [L, B, h, S, S] self-attention of the encoder; None without self-attention.
    encoder: Tensor | None
    # [L, B, h, T, T] self-attention of the decoder; None without self-attention.
    decoder: Tensor | None
    cross: Tensor  # [L, B, h, T, S] attention of target positions to source positions


def record_attention(
    model: Model, source: Tensor, lengths: Tensor, target_input: Tensor
) -> AttentionWeights:
    """Run a model once in evaluation mode with the true target, and return its attention weights.

    Takes the arguments of the model's `forward`. Row t of the weights belongs to the prediction of
    the token after target_input[:, t]. Ignore rows at the source's padding.
    """
    model = evaluation_copy(model)
    with torch.no_grad():
        if isinstance(model, Recurrent):
            weights = model.decode(source, lengths, target_input).weights
            return AttentionWeights(encoder=None, decoder=None, cross=weights[None, :, None])
        encoder = _record([layer.self_attention for layer in model.encoder.layers()])
        decoder = _record([layer.self_attention for layer in model.decoder.layers()])
        cross = _record([layer.cross_attention for layer in model.decoder.layers()])
        model(source, lengths, target_input)
    return AttentionWeights(
        encoder=torch.stack(encoder), decoder=torch.stack(decoder), cross=torch.stack(cross)
    )


def cross_attention(model: Model, source: Tensor, lengths: Tensor, target_input: Tensor) -> Tensor:
    """Return only the cross-attention [L, B, h, T, S] of `record_attention`."""
    if isinstance(model, Recurrent):
        return record_attention(model, source, lengths, target_input).cross
    model = evaluation_copy(model)
    recorded = _record([layer.cross_attention for layer in model.decoder.layers()])
    with torch.no_grad():
        model(source, lengths, target_input)
    return torch.stack(recorded)


def _record(modules: Sequence[MultiHeadAttention]) -> list[Tensor]:
    """Replace the heads of modules; return a list that they append their weights to."""
    recorded: list[Tensor] = []
    for module in modules:
        module.heads = _RecordingHeads(module.heads, recorded)
    return recorded


class _RecordingHeads(Heads):
    """Computes the weights [B, h, T, S], which fused kernels never hold, once more."""

    def __init__(self, heads: Heads, recorded: list[Tensor]) -> None:
        super().__init__(**heads.arguments() | {"dropout": 0.0})
        self._recorded = recorded

    @override
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, weight: Tensor | None
    ) -> Tensor:
        weights = attention_weights(query, key, mask.allowed(query, key), weight)
        self._recorded.append(weights.float())
        return super().attend(query, key, value, mask, weight)
