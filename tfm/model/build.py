"""Build models from configurations, with random or given weights."""

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfm.config import ModelConfig, ModelPart, RecurrentConfig, TransformerConfig
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer

Model = Transformer | Recurrent


def new_model(config: ModelConfig, vocab_sizes: tuple[int, int]) -> Model:
    """Create a model with random weights, for N source and M target pieces.

    Three-way tied embeddings need equal vocabularies.
    """
    match config:
        case TransformerConfig():
            return Transformer(config, vocab_sizes)
        case RecurrentConfig():
            return Recurrent(config, vocab_sizes)
    raise TypeError(f"{type(config).__name__} describes no model")


class _SkipRandomInit(TorchFunctionMode):
    """Leaves tensors unchanged that would be filled with random numbers."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return function(*args, **(kwargs or {}))


def empty_model(config: ModelConfig, vocab_sizes: tuple[int, int]) -> Model:
    """Create a model without memory for its weights, on the meta device.

    Random initialization is skipped: on the meta device, it loads torch's compiler, which takes
    two seconds.
    """
    with torch.device("meta"), _SkipRandomInit():
        return new_model(config, vocab_sizes)


def build_model(
    config: ModelConfig, weights: Mapping[str, Tensor], vocab_sizes: tuple[int, int]
) -> Model:
    """Create a model that shares weights […], by parameter; none are drawn at random."""
    # Building a thousand layers to compare their shapes would take half a minute.
    if config.num_encoder_layers + config.num_decoder_layers > len(weights):
        raise ValueError("the model has more layers than weights")
    model = empty_model(config, vocab_sizes)
    if _shapes(dict(model.named_parameters())) != _shapes(weights):
        raise ValueError("the weights have other names, shapes or types than the model's")
    # Tied weights are one parameter of several modules.
    parameters = {each: nn.Parameter(weights[name]) for name, each in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, parameters[parameter])
    return model


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def parameters_by_part(model: Model) -> dict[str, int]:
    """Count a model's parameters by part; shared parameters count once, with the embeddings."""
    counts = {"embeddings and output": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        counts[part_of_model(name)] += parameter.numel()
    return counts


def part_of_model(name: str) -> str:
    """Return the part of a model to which a parameter belongs."""
    if name.startswith(("source_embedding", "target_embedding", "output_")):
        return "embeddings and output"
    return "encoder" if name.startswith("encoder") else "decoder"


def freeze(model: Model, parts: Collection[ModelPart]) -> None:
    """Exclude the parameters of some parts of a model from training.

    Embeddings are frozen together with the output matrix, whether they share it or not.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not part_of_model(name).startswith(tuple(parts)))


def evaluation_copy(model: Model) -> Model:
    """Copy the modules of a model in evaluation mode; the copy shares its weights."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()
