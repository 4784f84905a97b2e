"""Record the attention weights of one forward pass."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tfm.model.attention import AttentionMask, MultiHeadAttention, attention_weights
from tfm.model.build import EvaluationMode, Model
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.recurrent import Recurrent


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """Attention weights of all L layers and h heads; each sums to 1 over the keys.

    Attributes:
        encoder: [L, B, h, S, S] self-attention of the encoder; None without self-attention.
        decoder: [L, B, h, T, T] self-attention of the decoder; None without self-attention.
        cross: [L, B, h, T, S] attention of target positions to source positions.
    """

    encoder: Tensor | None
    decoder: Tensor | None
    cross: Tensor


def record_attention(
    model: Model, source: Tensor, lengths: Tensor, target_input: Tensor
) -> AttentionWeights:
    """Run a model once in evaluation mode with the true target, and return its attention weights.

    Args:
        model: The model, which is left unchanged.
        source: [B, S] token ids, padded at the end.
        lengths: [B] source lengths.
        target_input: [B, T] target token ids, shifted right by one: row t of the weights belongs
            to the prediction of the token after target_input[:, t].

    Returns:
        Float32 weights on the model's device; ignore rows at the source's padding.
    """
    with EvaluationMode([model]), torch.no_grad():
        if isinstance(model, Recurrent):
            weights = model.attention_weights(source, lengths, target_input)
            return AttentionWeights(encoder=None, decoder=None, cross=weights[None, :, None])
        encoder_layers = cast("Sequence[EncoderLayer]", model.encoder)
        decoder_layers = cast("Sequence[DecoderLayer]", model.decoder)
        with (
            _recording([layer.self_attention for layer in encoder_layers]) as encoder,
            _recording([layer.self_attention for layer in decoder_layers]) as decoder,
            _recording([layer.cross_attention for layer in decoder_layers]) as cross,
        ):
            model(source, lengths, target_input)
    return AttentionWeights(
        encoder=torch.stack(encoder), decoder=torch.stack(decoder), cross=torch.stack(cross)
    )


@contextlib.contextmanager
def _recording(modules: Sequence[MultiHeadAttention]) -> Iterator[list[Tensor]]:
    """Record the weights of attention modules, in the order in which they are called.

    Fused kernels never hold the weights: they are computed again from the queries, keys and mask
    of `attend`. An instance attribute shadows that method meanwhile, so that the model's own code,
    which training runs, needs no hook.

    Yields:
        A list to which each call appends its weights [B, h, T, S].
    """
    recorded: list[Tensor] = []

    def shadow(module: MultiHeadAttention) -> None:
        attend = module.attend

        def record(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
            weight = module.additive_weight
            weights = attention_weights(query, key, mask, additive_weight=weight)
            recorded.append(weights.float())
            return attend(query, key, value, mask)

        vars(module)["attend"] = record

    for module in modules:
        shadow(module)
    try:
        yield recorded
    finally:
        for module in modules:
            del vars(module)["attend"]
