"""The model that a configuration describes."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import nn

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


@contextlib.contextmanager
def evaluation_mode(
    models: Sequence[nn.Module], operations: Operations | None = None
) -> Iterator[None]:
    """Switch dropout off for a while, and perhaps take other operations.

    Args:
        models: The models.
        operations: What to compute their layers with meanwhile; as before if not given.
    """
    were_training = [model.training for model in models]
    modules = [module for model in models for module in model.modules()]
    were = [(module, vars(module).get("operations")) for module in modules]
    for model in models:
        model.eval()
        if operations is not None:
            use_operations(model, operations)
    try:
        yield
    finally:
        for model, training in zip(models, were_training, strict=True):
            model.train(training)
        for module, before in were:
            vars(module).pop("operations", None)
            if before is not None:
                vars(module)["operations"] = before
