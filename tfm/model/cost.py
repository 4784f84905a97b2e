"""Compute a model's parameters, operations and memory before it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.machine.compute import device_memory_bytes
from tfm.machine.cpu import memory_bytes
from tfm.model.build import Model, empty_model, parameters_by_part, part_of_model

# fp32 weight, gradient and Adam's two moments.
_BYTES_PER_PARAMETER = 4 * 4
_BYTES_OF_AVERAGE = 4  # per parameter
_BYTES_TO_SAVE = 3 * 4  # weight and moments
# Forward, gradient of the input, gradient of the weight; a multiply-add is two operations.
_TRAINING_FLOPS_PER_MAC = 3 * 2

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Products:
    """The multiply-adds of the matrix products of a forward pass."""

    per_source_token: int  # multiply-adds for a source token
    per_target_token: int  # multiply-adds for a target token
    per_source_pair: int = 0  # encoder self-attention, for a query and a key that it sees
    # Decoder self-attention, for a query and a key, including hidden later keys.
    per_target_pair: int = 0
    per_cross_pair: int = 0  # cross-attention, for a target and a source token
    window: int | None = None  # number of keys that a query sees in self-attention; None for all


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a model."""

    # Number of parameters by part; shared parameters count once, with the embeddings.
    parameters: Mapping[str, int]
    products: Products  # multiply-adds of a forward pass
    state_bytes: int  # memory of weights, gradients and optimizer state
    average_bytes: int  # memory of the moving average of the weights; 0 without one
    token_bytes: int  # estimated memory of the activations of a token on each side

    @property
    def num_parameters(self) -> int:
        """The number of all parameters."""
        return sum(self.parameters.values())

    @property
    def gathered_bytes(self) -> int:
        """The host memory for weights, moments and average of a sharded model, to save them."""
        return _BYTES_TO_SAVE * self.num_parameters + self.average_bytes

    def training_flops(self, source_lengths: Lengths, target_lengths: Lengths) -> int:
        """Return the operations of training on sentence pairs of [N] lengths once, without padding.

        Lengths include EOS.
        """
        products = self.products
        sources_seen, targets_seen = (
            lengths if products.window is None else np.minimum(lengths, products.window)
            for lengths in (source_lengths, target_lengths)
        )
        macs = (
            products.per_source_token * int(source_lengths.sum())
            + products.per_target_token * int(target_lengths.sum())
            + products.per_source_pair * int(source_lengths @ sources_seen)
            + products.per_target_pair * int(target_lengths @ targets_seen)
            + products.per_cross_pair * int(source_lengths @ target_lengths)
        )
        return _TRAINING_FLOPS_PER_MAC * macs


def model_cost(
    config: ModelConfig, vocab_sizes: tuple[int, int], *, averages_weights: bool = False
) -> Cost:
    """Compute the cost of a model, without memory for its weights.

    Args:
        config: The model.
        vocab_sizes: The numbers of source and target pieces.
        averages_weights: Whether training keeps a moving average of the weights.
    """
    model = empty_model(config, vocab_sizes)
    parameters = parameters_by_part(model)
    output = config.d_model * vocab_sizes[1]
    if isinstance(config, RecurrentConfig):
        products, activations = _recurrent_products(config, model, output)
    else:
        products, activations = _transformer_products(cast("TransformerConfig", config), output)
    return Cost(
        parameters=parameters,
        products=products,
        state_bytes=_BYTES_PER_PARAMETER * sum(parameters.values()),
        average_bytes=_BYTES_OF_AVERAGE * sum(parameters.values()) if averages_weights else 0,
        token_bytes=4 * activations,
    )


def memory_problem(cost: Cost, device: torch.device, *, num_copies: float = 1) -> str | None:
    """Return why a device is too small for training a model; None if it may be large enough.

    Activations are not counted. `num_copies` is the number of models in the memory of the device; a
    fraction if it is sharded.
    """
    needed = num_copies * (cost.state_bytes + cost.average_bytes)
    present = device_memory_bytes(device)
    if needed <= present:
        return None
    copies = f"{num_copies:g} copies of the" if num_copies > 1 else "the"
    return (
        f"weights, gradients and optimizer state of {copies} model need {needed / 1e9:,.0f} GB, "
        f"but {'this machine' if device.type == 'cpu' else 'the GPU'} has {present / 1e9:,.0f} GB: "
        "set a smaller --arch, --d-model, --d-ff or number of layers"
    )


def gathering_problem(cost: Cost, device: torch.device, *, num_copies: float) -> str | None:
    """Return why rank 0 cannot gather a sharded model on this machine; None if it can.

    A CPU also holds `num_copies` of the model.
    """
    held = num_copies * (cost.state_bytes + cost.average_bytes) if device.type == "cpu" else 0
    needed, present = held + cost.gathered_bytes, memory_bytes()
    if needed <= present:
        return None
    return (
        "with shard, rank 0 gathers weights and optimizer state in the memory of its machine to "
        f"save them, which takes {needed / 1e9:,.0f} GB in all, but it has {present / 1e9:,.0f} "
        "GB: start node 0 on a machine with more memory, or train a smaller model"
    )


def _transformer_products(config: TransformerConfig, output: int) -> tuple[Products, int]:
    """Return the multiply-adds, and the number of activations per token in all layers."""
    pair = config.num_heads * (config.key_width + config.value_width)
    query_output = key_value = config.d_model * pair
    feed_forward = 2 * config.d_model * config.d_ff
    encoders, decoders = config.num_encoder_layers, config.num_decoder_layers
    encoder_layer = query_output + key_value + feed_forward
    decoder_layer = 2 * query_output + key_value + feed_forward
    products = Products(
        per_source_token=encoders * encoder_layer + decoders * key_value,
        per_target_token=decoders * decoder_layer + output,
        per_source_pair=encoders * pair,
        per_target_pair=decoders * pair,
        per_cross_pair=decoders * pair,
        window=config.attention_window,
    )
    # Inputs of each matrix product and norm, and dropout masks.
    layers = (8 * encoders + 13 * decoders) * config.d_model
    num_inner = 2 if config.activation == "relu" else 3  # the gradient of others needs their input
    return products, layers + num_inner * config.d_ff * (encoders + decoders)


def _recurrent_products(config: RecurrentConfig, model: Model, output: int) -> tuple[Products, int]:
    """Return the same without the bridge, since that computes only once per sentence."""
    source = target = 0  # elements of the matrices that multiply source and target tokens
    for name, parameter in model.named_parameters():
        is_embedding = part_of_model(name) == "embeddings and output"
        is_vector = parameter.dim() < 2 or name.endswith("additive_weight")
        if is_vector or is_embedding or "bridge" in name:
            continue
        if name.startswith(("encoder", "decoder.attention.key")):
            source += parameter.numel()
        else:
            target += parameter.numel()
    products = Products(
        per_source_token=source,
        per_target_token=target + output,
        per_cross_pair=config.d_model + config.encoded_width,
    )
    # Gates, states and outputs of each layer, and dropout masks.
    encoders = config.num_encoder_layers * config.encoded_width
    return products, 12 * (encoders + config.num_decoder_layers * config.d_model)
