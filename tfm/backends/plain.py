"""The plain backends, which leave a model as it is, and the interfaces of the others."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from typing_extensions import override

from tfm.device.compute import Compute
from tfm.model.build import Model, evaluation_copy


class Cast(nn.Dropout):
    """Casts activations to a dtype, and drops none."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.to(self._dtype)


class TrainingBackend:
    """Trains a model with its own modules."""

    compiles = False  # whether code is compiled for each size of a batch

    def install(self, model: Model) -> None:
        """Replace submodules of a model by faster ones with the same parameters and names."""

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
