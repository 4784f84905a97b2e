"""Build models from configurations or model folders."""

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfm.config import ModelConfig, ModelPart, RecurrentConfig, TransformerConfig
from tfm.errors import CheckpointError
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer
from tfm.storage.checkpoint.model_folder import ModelInfo
from tfm.storage.checkpoint.model_tensors import load_weights

Model = Transformer | Recurrent


def new_model(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Create a model with random weights; three-way tied embeddings need equal vocabularies."""
    sizes = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
    match config:
        case TransformerConfig():
            return Transformer(config, **sizes)
        case RecurrentConfig():
            return Recurrent(config, **sizes)
    raise TypeError(f"{type(config).__name__} describes no model")


class _SkipRandomInit(TorchFunctionMode):
    """Leaves tensors unchanged that would be filled with random numbers."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return function(*args, **(kwargs or {}))


def empty_model(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Create a model without memory for its weights, on the meta device.

    Random initialization is skipped: on the meta device, it loads torch's compiler, which takes
    two seconds.
    """
    with torch.device("meta"), _SkipRandomInit():
        return new_model(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )


def shallow_models(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int
) -> tuple[Model, Model]:
    """Create empty models with one and with two layers on each side.

    All further layers are like the second: counts of a deep model follow from these two, without
    the seconds that building a thousand layers takes.
    """
    one, two = (
        empty_model(
            replace(config, num_encoder_layers=num_layers, num_decoder_layers=num_layers),
            source_vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
        )
        for num_layers in (1, 2)
    )
    return one, two


def parameters_by_part(
    config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int
) -> dict[str, int]:
    """Count a model's parameters by part; shared ones count once, with the embeddings."""
    one, two = shallow_models(
        config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
    )
    in_one, in_two = _count_by_part(one), _count_by_part(two)
    num_layers = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    return {
        part: count + (num_layers.get(part, 1) - 1) * (in_two[part] - count)
        for part, count in in_one.items()
    }


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


def _count_by_part(model: Model) -> dict[str, int]:
    counts = {"embeddings and output": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        counts[part_of_model(name)] += parameter.numel()
    return counts


def load_model(folder: Path, info: ModelInfo) -> Model:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or do not fit the configuration.
    """
    weights = load_weights(folder)
    model = _model_for(weights, info)
    if model is None:
        raise CheckpointError(
            f"{folder}: the weights do not fit config.json: copy both files from the same model"
        )
    parameters = dict(model.named_parameters())
    # Tied weights are one parameter of several modules.
    loaded = {
        parameter: nn.Parameter(weights[name].clone()) for name, parameter in parameters.items()
    }
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, loaded[parameter])
    return model


def _model_for(weights: Mapping[str, Tensor], info: ModelInfo) -> Model | None:
    """Create the empty model of a configuration; None if weights, of any shape, do not fit it."""
    source_size, target_size = info.vocab_sizes
    sizes = {"source_vocab_size": source_size, "target_vocab_size": target_size}
    # Counted first: a configuration that is larger than its file takes no time and memory.
    num_parameters = sum(parameters_by_part(info.run.model, **sizes).values())
    if num_parameters != sum(tensor.numel() for tensor in weights.values()):
        return None
    model = empty_model(info.run.model, **sizes)
    expected = {name: (each.shape, each.dtype) for name, each in model.named_parameters()}
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}
    return model if found == expected else None


def evaluation_copy(model: Model) -> Model:
    """Copy the modules of a model in evaluation mode; the copy shares its weights."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()
