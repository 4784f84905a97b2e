"""The inference backend of GPUs: weights in the dtype of matrix products."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn
from typing_extensions import override

from tfm.backends.plain import InferenceBackend, cast_embeddings
from tfm.machine.compute import Compute
from tfm.model.build import Model, evaluation_copy
from tfm.model.transformer import Transformer


class GpuInference(InferenceBackend):
    """Casts the weights of copies once; autocast would cast them at each product.

    Positions stay in fp32, and their sums with embeddings are cast.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    @override
    def autocast(self, compute: Compute) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    @override
    def optimized(self, model: Model) -> Model:
        model = evaluation_copy(model)
        # Tied weights are one parameter of several modules.
        cast = {each: nn.Parameter(each.detach().to(self._dtype)) for each in model.parameters()}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if name != "positions":
                    setattr(module, name, cast[parameter])
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN would join the weights at each call
        if isinstance(model, Transformer):
            cast_embeddings(model, self._dtype)
        return model.eval()
