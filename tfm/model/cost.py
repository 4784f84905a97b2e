"""What a model costs in parameters, operations and memory, known before it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.model.build import empty_model

# fp32 weight, gradient and Adam's two moments.
_BYTES_PER_PARAMETER = 4 * 4
# Forward, gradient of the input, gradient of the weight; a multiply-add is two operations.
_TRAINING_FLOPS_PER_MAC = 3 * 2

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Products:
    """Multiply-adds of a forward pass; what is not a matrix product is left out.

    Attributes:
        per_source_token: Of the products that a source token goes through.
        per_target_token: The same for a target token.
        per_source_pair: Of the encoder's self-attention, for a query and a key in its sight.
        per_target_pair: Of the decoder's self-attention, likewise; keys that come later count, too.
        per_cross_pair: Of attention to the source, for a target and a source token.
        window: Keys in sight of self-attention; None if all are.
    """

    per_source_token: int
    per_target_token: int
    per_source_pair: int = 0
    per_target_pair: int = 0
    per_cross_pair: int = 0
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model costs.

    Attributes:
        parameters: Number of parameters by part; shared ones count once, with the embeddings.
        products: Multiply-adds.
        state_bytes: Weights, gradients and optimizer.
        activation_bytes: An estimate for `max_tokens` tokens a side.
    """

    parameters: Mapping[str, int]
    products: Products
    state_bytes: int
    activation_bytes: int

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())

    def training_flops(self, source_lengths: Lengths, target_lengths: Lengths) -> int:
        """Operations to train on sentence pairs once, forward and backward, without padding.

        Args:
            source_lengths: [N] tokens of each source, EOS included.
            target_lengths: [N] tokens of each target, EOS included.
        """
        each = self.products
        sources_seen, targets_seen = (
            lengths if each.window is None else np.minimum(lengths, each.window)
            for lengths in (source_lengths, target_lengths)
        )
        macs = (
            each.per_source_token * int(source_lengths.sum())
            + each.per_target_token * int(target_lengths.sum())
            + each.per_source_pair * int(source_lengths @ sources_seen)
            + each.per_target_pair * int(target_lengths @ targets_seen)
            + each.per_cross_pair * int(source_lengths @ target_lengths)
        )
        return _TRAINING_FLOPS_PER_MAC * macs


def model_cost(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int, max_tokens: int
) -> Cost:
    """Count a model without making its weights.

    Args:
        config: Its kind and shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces.
        max_tokens: Tokens a side that are computed at once.
    """
    model = empty_model(
        config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
    )
    parameters = {"embeddings and output": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        parameters[_part_of(name)] += parameter.numel()
    match config:
        case TransformerConfig():
            products, activations = _transformer_products(config)
        case RecurrentConfig():
            products, activations = _recurrent_products(config, model)
        case _:
            raise TypeError(f"{type(config).__name__} describes no model")
    return Cost(
        parameters=parameters,
        products=replace(
            products,
            per_target_token=products.per_target_token + config.d_model * target_vocab_size,
        ),
        state_bytes=_BYTES_PER_PARAMETER * sum(parameters.values()),
        activation_bytes=4 * max_tokens * activations,
    )


def _part_of(name: str) -> str:
    """The part of the model that a parameter belongs to."""
    if name.startswith(("source_embedding", "target_embedding", "output_weight")):
        return "embeddings and output"
    return "encoder" if name.startswith("encoder") else "decoder"


def _transformer_products(config: TransformerConfig) -> tuple[Products, int]:
    """Multiply-adds, but the output projection's, and activations of a token in all layers."""
    query_output = config.d_model * config.num_heads * (config.key_width + config.value_width)
    key_value = query_output
    feed_forward = 2 * config.d_model * config.d_ff
    pair = config.num_heads * (config.key_width + config.value_width)
    encoders, decoders = config.num_encoder_layers, config.num_decoder_layers
    products = Products(
        per_source_token=encoders * (query_output + key_value + feed_forward)
        + decoders * key_value,
        per_target_token=decoders * (2 * query_output + key_value + feed_forward),
        per_source_pair=encoders * pair,
        per_target_pair=decoders * pair,
        per_cross_pair=decoders * pair,
        window=config.attention_window,
    )
    # Inputs of each matrix product and norm, and the masks of dropout.
    layers = (8 * encoders + 13 * decoders) * config.d_model
    return products, layers + 2 * config.d_ff * (encoders + decoders)


def _recurrent_products(config: RecurrentConfig, model: nn.Module) -> tuple[Products, int]:
    """The same, the bridge between encoder and decoder left out, which is used once a sentence."""
    source = target = 0
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or _part_of(name) == "embeddings and output" or "bridge" in name:
            continue
        if name.startswith(("encoder", "decoder.attention.key")):
            source += parameter.numel()
        else:
            target += parameter.numel()
    if config.attention == "additive":
        target -= config.d_model  # v, which is no matrix
    products = Products(
        per_source_token=source, per_target_token=target, per_cross_pair=2 * config.d_model
    )
    # Gates, states and outputs of each layer, and the masks of dropout.
    return products, 12 * (config.num_encoder_layers + config.num_decoder_layers) * config.d_model
