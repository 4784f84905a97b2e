"""Record the attention weights of one forward pass."""

import contextlib
import functools
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
    """Attention weights of all L layers and h heads; each sums to 1 over the keys."""

    # [L, B, h, S, S] self-attention of the encoder; None without self-attention.
    encoder: Tensor | None
    # [L, B, h, T, T] self-attention of the decoder; None without self-attention.
    decoder: Tensor | None
    cross: Tensor  # [L, B, h, T, S] attention of target positions to source positions


def record_attention(
    model: Model, source: Tensor, lengths: Tensor, target_input: Tensor
) -> AttentionWeights:
    """Run a model once in evaluation mode with the true target, and return its attention weights.

    The arguments are those of the model's `forward`. Row t of the weights belongs to the prediction
    of the token after target_input[:, t]. Ignore rows at the source's padding.
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
    """Yield a list to which each call of an attention module appends its weights [B, h, T, S].

    Fused kernels never hold the weights: they are computed again from the queries, keys and mask
    of `attend`. An instance attribute shadows that method meanwhile, so that the model's own code,
    which training runs, needs no hook.
    """
    recorded: list[Tensor] = []

    def record(
        module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> Tensor:
        weight = module.additive_weight
        recorded.append(attention_weights(query, key, mask, additive_weight=weight).float())
        return MultiHeadAttention.attend(module, query, key, value, mask)

    for module in modules:
        vars(module)["attend"] = functools.partial(record, module)
    try:
        yield recorded
    finally:
        for module in modules:
            del vars(module)["attend"]
