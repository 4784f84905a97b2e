"""The model that a configuration describes."""

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
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


@contextlib.contextmanager
def evaluation_mode(models: Sequence[nn.Module]) -> Iterator[None]:
    """Switch dropout off for a while."""
    were_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, were_training, strict=True):
            model.train(training)
