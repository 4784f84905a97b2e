"""The model that a configuration describes."""

import contextlib
import copy
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.kernels.operations import Operations
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer

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


class HasModules(Protocol):
    """Part of what a torch module is."""

    def modules(self) -> Iterable[nn.Module]:
        """All modules, its own among them."""


def use_operations(model: HasModules, operations: Operations) -> None:
    """Have a model computed with other operations; modules that have none of them stay as they are.

    Args:
        model: The model.
        operations: What to compute its layers with.
    """
    for module in model.modules():
        if hasattr(type(module), "operations"):
            vars(module)["operations"] = operations


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
        operations: What to compute their layers with meanwhile; as before if not given.
    """

    def __init__(self, models: Sequence[nn.Module], operations: Operations | None = None) -> None:
        self._modules = [module for model in models for module in model.modules()]
        self._operations = operations
        self._before: list[tuple[bool, Operations | None]] = []

    def __enter__(self) -> None:
        """Switch over."""
        of_modules = [vars(module) for module in self._modules]
        self._before = [(each["training"], each.get("operations")) for each in of_modules]
        for module, attributes in zip(self._modules, of_modules, strict=True):
            attributes["training"] = False
            if self._operations is not None and hasattr(type(module), "operations"):
                attributes["operations"] = self._operations

    def __exit__(self, *_: object) -> None:
        """Switch back."""
        for module, (training, operations) in zip(self._modules, self._before, strict=True):
            attributes = vars(module)
            attributes["training"] = training
            attributes.pop("operations", None)
            if operations is not None:
                attributes["operations"] = operations
