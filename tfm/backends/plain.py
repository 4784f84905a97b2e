"""The plain backends, which leave a model as it is, and the interfaces of the others."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from typing_extensions import override

from tfm.machine.compute import Compute
from tfm.model.build import Model, evaluation_copy
from tfm.model.layers import Embedding
from tfm.model.packing import Layout
from tfm.model.transformer import Transformer


class CastEmbedding(Embedding):
    """An embedding that returns its output in the dtype of the layers after it."""

    def __init__(self, embedding: Embedding, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.weight, self.scale, self.dropout = embedding.weight, embedding.scale, embedding.dropout
        self.max_positions, self._dtype = embedding.max_positions, dtype
        if self.max_positions is None:
            self.register_buffer("positions", embedding.positions, persistent=False)
        else:
            self.positions = embedding.positions

    @override
    def embed(self, tokens: Tensor, layout: Layout) -> Tensor:
        return super().embed(tokens, layout).to(self._dtype)


def cast_embeddings(model: Transformer, dtype: torch.dtype) -> None:
    """Replace the embeddings of a model by such of another dtype."""
    model.source_embedding = CastEmbedding(model.source_embedding, dtype)
    model.target_embedding = CastEmbedding(model.target_embedding, dtype)


class TrainingBackend:
    """Trains a model with its own modules."""

    compiles = False  # whether code is compiled for each size of a batch

    def install(self, model: Model) -> None:
        """Replace submodules of a model by faster ones with the same parameters and names."""

    def packs(self, model: Model) -> bool:
        """Return whether a model computes packed batches without padding once it is installed."""
        return False

    def seed(self, seed: int) -> None:
        """Seed the random numbers of dropout."""
        torch.manual_seed(seed)


class InferenceBackend:
    """Runs a model with its own modules."""

    def optimized(self, model: Model) -> Model:
        """Return a copy of a model for inference, which shares its weights.

        They must not change afterwards.
        """
        return evaluation_copy(model)

    def autocast(self, compute: Compute) -> AbstractContextManager[None]:
        """Return the context in which copies compute with this arithmetic."""
        return compute.autocast()


PLAIN_TRAINING = TrainingBackend()
PLAIN_INFERENCE = InferenceBackend()
