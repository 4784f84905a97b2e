"""What a Transformer costs before it is trained: parameters, arithmetic and memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tfm.config import TransformerConfig
from tfm.model.transformer import Transformer

# fp32 weight, gradient and Adam's two moments.
_BYTES_A_PARAMETER = 4 * 4
# Forward, gradient of the input, gradient of the weight; a multiply-add is two operations.
_TRAINING_FLOPS_A_MAC = 3 * 2


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model costs.

    Attributes:
        parameters: Number of parameters by part; shared ones count once, with the embeddings.
        flops_a_source_token: Training FLOPs, attention scores left out.
        flops_a_target_token: Training FLOPs, attention scores left out.
        state_bytes: Weights, gradients and optimiser.
        activation_bytes: An estimate for `max_tokens` tokens a side.
    """

    parameters: Mapping[str, int]
    flops_a_source_token: int
    flops_a_target_token: int
    state_bytes: int
    activation_bytes: int

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())


def transformer_cost(
    config: TransformerConfig, *, source_vocab_size: int, target_vocab_size: int, max_tokens: int
) -> Cost:
    """Count a model without making it.

    Args:
        config: Its shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces.
        max_tokens: Tokens a side that are computed at once.
    """
    with torch.device("meta"):
        model = Transformer(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
    encoder, decoder = (
        _size(model.encoder, model.encoder_norm),
        _size(model.decoder, model.decoder_norm),
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    d, heads = config.d_model, config.num_heads
    query_output = d * heads * (config.key_width + config.value_width)
    key_value = query_output
    feed_forward = 2 * d * config.d_ff
    source_macs = config.num_encoder_layers * (query_output + key_value + feed_forward)
    source_macs += config.num_decoder_layers * key_value
    target_macs = config.num_decoder_layers * (2 * query_output + key_value + feed_forward)
    target_macs += d * target_vocab_size
    # Inputs of each matrix product and norm, and the masks of dropout, at fp32.
    layers = 8 * config.num_encoder_layers + 13 * config.num_decoder_layers
    inner = 2 * config.d_ff * (config.num_encoder_layers + config.num_decoder_layers)
    return Cost(
        parameters={
            "embeddings and output": total - encoder - decoder,
            "encoder": encoder,
            "decoder": decoder,
        },
        flops_a_source_token=_TRAINING_FLOPS_A_MAC * source_macs,
        flops_a_target_token=_TRAINING_FLOPS_A_MAC * target_macs,
        state_bytes=_BYTES_A_PARAMETER * total,
        activation_bytes=4 * max_tokens * (layers * d + inner),
    )


def _size(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
