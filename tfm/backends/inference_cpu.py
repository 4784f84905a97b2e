"""The inference backend of CPUs: linear layers with prepacked weights, without padding."""

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.decoding_cpu import CpuDecoder, RoundUp
from tfm.backends.plain import InferenceBackend, cast_embeddings
from tfm.backends.products_cpu import SMALL_NUM_ROWS, Linear, Prepack
from tfm.backends.sentence_attention import RandomMasks, SentenceHeads
from tfm.machine.compute import Compute
from tfm.model.attention import FeedForward, Residual
from tfm.model.build import Model, evaluation_copy
from tfm.model.packing import Layout, Packing, Padded
from tfm.model.projections import InputProjection
from tfm.model.transformer import Encoder, ToLogits, Transformer

# Pad the vocabulary to a multiple of the block size of beam search.
_VOCAB_MULTIPLE = 64


class CpuInference(InferenceBackend):
    """Optimizes copies of models: linear layers with weights that are prepacked once.

    Args:
        prepack: Prepacks a weight [out, in] and a bias [out].
        dtype: Dtype of activations.
        compaction_threshold: Compute all hypotheses of a step if at least this fraction is active.
        limit_sizes: Whether to compute few distinct numbers of rows: oneDNN prepares for each.
    """

    def __init__(
        self,
        prepack: Prepack,
        dtype: torch.dtype,
        *,
        compaction_threshold: float = 1.0,
        limit_sizes: bool = False,
    ) -> None:
        self._prepack = prepack
        self._dtype = dtype
        self._limit_sizes = limit_sizes
        self._compaction_threshold = compaction_threshold

    @override
    def autocast(self, compute: Compute) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # the modules cast

    @override
    def optimized(self, model: Model) -> Model:
        model = evaluation_copy(model)
        if not isinstance(model, Transformer):  # torch computes the layers of others
            return model
        cast_embeddings(model, self._dtype)
        for layer in (*model.encoder, *model.decoder):
            for name, module in list(layer.named_children()):
                if isinstance(module, Residual):
                    setattr(layer, name, ResidualInPlace(module))
                elif isinstance(module, FeedForward):
                    setattr(layer, name, PrepackedFeedForward(module, self.prepacked))
                else:
                    module.input = PrepackedProjection(module.input, self.prepacked)
                    module.heads = SentenceHeads(module.heads, RandomMasks())
                    module.output = PrepackedLinear(module.output, self.prepacked)
        model.encoder = PackedEncoder(model.encoder, self.round_up_rows)
        model.decoder = CpuDecoder(
            model.decoder, self.round_up_rows, compaction_threshold=self._compaction_threshold
        )
        model.to_logits = PrepackedToLogits(model.output_weight, model.output_bias, self.prepacked)
        return model.eval()

    def round_up_rows(self, num_rows: int) -> int:
        """Round the number of rows up, so that few distinct shapes occur."""
        if num_rows <= SMALL_NUM_ROWS[-1]:
            return next(size for size in SMALL_NUM_ROWS if size >= num_rows)
        if not self._limit_sizes:
            return num_rows
        step = 1 << max(0, num_rows.bit_length() - 4)  # four significant bits
        return -(-num_rows // step) * step

    def prepacked(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return a linear layer of weight [out, in] and bias [out]."""
        linear = self._prepack(weight.detach(), None if bias is None else bias.detach())
        if not self._limit_sizes:
            return linear

        def linear_of_rounded_size(x: Tensor, relu: bool) -> Tensor:
            rows = x.flatten(0, -2)
            num_spare = self.round_up_rows(len(rows)) - len(rows)
            if not num_spare:
                return linear(x, relu)
            out = linear(F.pad(rows, (0, 0, 0, num_spare)), relu)[: len(rows)]
            return out.view(*x.shape[:-1], out.size(1))

        return linear_of_rounded_size


class PrepackedLinear(nn.Linear):
    """A linear layer with a prepacked weight."""

    def __init__(self, linear: nn.Linear, prepack: Prepack) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.prepacked = prepack(linear.weight, linear.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.prepacked(x, False)


class PrepackedProjection(InputProjection):
    """Projections with prepacked weights: joint in self-attention, separate in cross-attention."""

    def __init__(self, projection: InputProjection, prepack: Prepack) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight, self.bias = projection.weight, projection.bias
        self.part_widths = projection.part_widths
        self._prepack = prepack

    @cached_property
    def prepacked(self) -> Linear:
        """The joint projection."""
        return self._prepack(self.weight, self.bias)

    @cached_property
    def _prepacked_parts(self) -> list[Linear]:
        return [self._prepack(weight, bias) for weight, bias in self.parts()]

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.prepacked(x, False)

    @override
    def queries(self, x: Tensor) -> Tensor:
        return self._prepacked_parts[0](x, False)

    @override
    def keys_values(self, memory: Tensor) -> Tensor:
        return self._prepacked_parts[1](memory, False)

    @override
    def queries_and_keys_values(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.queries(x), self.keys_values(memory)


class PrepackedFeedForward(FeedForward):
    """A feed-forward network with prepacked weights, and its activation joined with the first."""

    inner: PrepackedLinear
    outer: PrepackedLinear

    def __init__(self, feed_forward: FeedForward, prepack: Prepack) -> None:
        nn.Module.__init__(self)
        self.inner = PrepackedLinear(feed_forward.inner, prepack)
        if feed_forward.activation is not F.relu:
            self.inner.prepacked = _activated(self.inner.prepacked, feed_forward.activation)
        self.outer = PrepackedLinear(feed_forward.outer, prepack)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.outer.prepacked(self.inner.prepacked(x, True), False)


def _activated(linear: Linear, activation: Callable[[Tensor], Tensor]) -> Linear:
    """Return a linear layer with another activation in the place of ReLU."""
    return lambda x, activates: activation(linear(x, False)) if activates else linear(x, False)


class PrepackedToLogits(ToLogits):
    """The projection to logits with a prepacked weight.

    The vocabulary is padded by tokens of probability 0: products of aligned rows are faster.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, prepack: Prepack) -> None:
        super().__init__()
        self._vocab_size = len(weight)
        if spare := -len(weight) % _VOCAB_MULTIPLE:
            weight = F.pad(weight, (0, 0, 0, spare))
            bias = None if bias is None else F.pad(bias, (0, spare))
        self._prepacked = prepack(weight, bias)

    @override
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = self._prepacked(x, False)
        logits[..., self._vocab_size :] = -math.inf
        return logits


class ResidualInPlace(Residual):
    """A residual connection that overwrites the output of the sub-layer."""

    def __init__(self, residual: Residual) -> None:
        nn.Module.__init__(self)
        self.norm, self.norm_first = residual.norm, residual.norm_first

    @override
    def add(self, x: Tensor, out: Tensor) -> Tensor:
        return out.add_(x)


class PackedEncoder(Encoder):
    """An encoder that computes no padding between sentences."""

    def __init__(self, encoder: Encoder, round_up_rows: RoundUp) -> None:
        super().__init__(encoder)
        self._round_up_rows = round_up_rows

    @override
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if not isinstance(layout, Padded) or layout.device_lengths is None:
            return super().forward(x, layout)
        if len(x) == 1:
            spare = self._round_up_rows(layout.length) - layout.length
            if not spare:
                return super().forward(x, Padded(layout.length))
            padded = Padded(layout.length + spare, layout.device_lengths)
            return super().forward(F.pad(x, (0, 0, 0, spare)), padded)[:, : layout.length]
        num_tokens = int(layout.device_lengths.sum())
        packing = Packing(layout.device_lengths, self._round_up_rows(num_tokens + 1))
        packed = packing.pack(x[:, : packing.longest])
        return packing.pad(super().forward(packed, packing))
