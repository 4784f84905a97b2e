"""What a model attends to: the attention weights of one pass, recorded from outside."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tfm.model.attention import AttentionMask, MultiHeadAttention
from tfm.model.build import EvaluationMode, Model
from tfm.model.layers import DecoderLayer, EncoderLayer
from tfm.model.recurrent import Recurrent


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """Attention weights of all L layers and h heads; each row of keys sums to 1.

    Attributes:
        encoder: [L, B, h, S, S] source positions to source positions; None without
            self-attention.
        decoder: [L, B, h, T, T] target positions to those up to themselves; None without
            self-attention.
        cross: [L, B, h, T, S] target positions to source positions.
    """

    encoder: Tensor | None
    decoder: Tensor | None
    cross: Tensor


def record_attention(
    model: Model, source: Tensor, lengths: Tensor, target_input: Tensor
) -> AttentionWeights:
    """Run a model once with the true target, without dropout, and keep its attention weights.

    The model is afterwards as it was before.

    Args:
        model: The model.
        source: [B, S] token ids, padded at the end.
        lengths: [B] source lengths.
        target_input: [B, T] target token ids, moved right by one: row t of the weights is what
            the model attends to when it predicts the token after target_input[:, t].

    Returns:
        Float32 weights on the model's device; rows at the source's padding mean nothing.
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
def _recording(attentions: Sequence[MultiHeadAttention]) -> Iterator[list[Tensor]]:
    """Keep what each of these attends to, in the order in which they are called.

    Fused kernels never hold the weights: those are worked out from the queries, keys and mask
    that `attend` is given. An attribute of that name hides the method for a while, so that the
    model's own code, which training runs, need know nothing of this.

    Yields:
        A list to which each call appends its weights [B, h, T, S].
    """
    recorded: list[Tensor] = []

    def hide(attention: MultiHeadAttention) -> None:
        attend = attention.attend

        def record(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
            recorded.append(attention.weights(query, key, mask).float())
            return attend(query, key, value, mask)

        vars(attention)["attend"] = record

    for attention in attentions:
        hide(attention)
    try:
        yield recorded
    finally:
        for attention in attentions:
            del vars(attention)["attend"]
