"""The model that a configuration describes, or a model folder holds."""

import contextlib
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfm.backends.plain import Backend
from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.errors import CheckpointError
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer
from tfm.storage.checkpoint.model_folder import ModelInfo, load_weights

Model = Transformer | Recurrent


def new_model(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Make a model with fresh weights.

    Args:
        config: Its kind and shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces; with three-way tied embeddings, the same.
    """
    match config:
        case TransformerConfig():
            return Transformer(
                config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
            )
        case RecurrentConfig():
            return Recurrent(
                config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
            )
    raise TypeError(f"{type(config).__name__} describes no model")


class _DrawNothing(TorchFunctionMode):
    """Leaves tensors as they are that would be filled with random numbers."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return function(*args, **(kwargs or {}))


def empty_model(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Make a model without weights, on the meta device.

    To draw them there would load torch's compiler, which takes two seconds.

    Args:
        config: Its kind and shape.
        source_vocab_size: Number of source pieces.
        target_vocab_size: Number of target pieces; with three-way tied embeddings, the same.
    """
    with torch.device("meta"), _DrawNothing():
        return new_model(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )


def load_model(folder: Path, info: ModelInfo) -> Model:
    """Build a model and read its weights.

    Raises:
        CheckpointError: The weights are damaged, or not those of this model.
    """
    source_size, target_size = info.vocab_sizes
    model = empty_model(
        info.run.model, source_vocab_size=source_size, target_vocab_size=target_size
    )
    weights = load_weights(folder)
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: parameter.shape for name, parameter in parameters.items()}:
        raise CheckpointError(f"{folder}: weights and config.json are not of one model")
    # Those that are tied are one parameter, in several modules.
    loaded = {
        parameter: nn.Parameter(weights[name].clone()) for name, parameter in parameters.items()
    }
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, loaded[parameter])
    return model


def use_backend(model: nn.Module, backend: Backend) -> None:
    """Have a model computed with other operations; modules that have none of them stay as they are.

    Args:
        model: The model.
        backend: What to compute its layers with.
    """
    for module in model.modules():
        if hasattr(type(module), "backend"):
            vars(module)["backend"] = backend


def converted(model: Model, dtype: torch.dtype) -> Model:
    """A copy of a model whose weights are of another type; its sinusoids stay as they are."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(dtype)
    return copied


class EvaluationMode(contextlib.AbstractContextManager[None]):
    """Switches dropout off for a while, and perhaps takes other operations; as often as one likes.

    Entering takes microseconds: it is done for single sentences.

    Args:
        models: The models.
        backend: What to compute their layers with meanwhile; as before if not given.
    """

    def __init__(self, models: Sequence[nn.Module], backend: Backend | None = None) -> None:
        self._modules = [module for model in models for module in model.modules()]
        self._backend = backend
        self._before: list[tuple[bool, Backend | None]] = []

    def __enter__(self) -> None:
        """Switch over."""
        of_modules = [vars(module) for module in self._modules]
        self._before = [(each["training"], each.get("backend")) for each in of_modules]
        for module, attributes in zip(self._modules, of_modules, strict=True):
            attributes["training"] = False
            if self._backend is not None and hasattr(type(module), "backend"):
                attributes["backend"] = self._backend

    def __exit__(self, *_: object) -> None:
        """Switch back."""
        for module, (training, backend) in zip(self._modules, self._before, strict=True):
            attributes = vars(module)
            attributes["training"] = training
            attributes.pop("backend", None)
            if backend is not None:
                attributes["backend"] = backend
