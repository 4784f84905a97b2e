"""The inference backend of CPUs: linear layers with prepacked weights, in fp32, bf16 or int8."""

import contextlib
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.plain import Cast, InferenceBackend
from tfm.backends.sentence_attention import RandomMasks, SentenceHeads
from tfm.backends.single_sentence import SingleSentenceCache, SingleSentenceLayer, decodes_alone
from tfm.data.packing import Layout, Packing, Padded
from tfm.device.compute import HAS_MKL, Compute, one_thread, onednn_products
from tfm.device.cpu import this_cpu
from tfm.model.attention import InputProjection
from tfm.model.build import Model, evaluation_copy
from tfm.model.cache import DecoderCache, DecodingState, StepRows
from tfm.model.layers import FeedForward, Residual
from tfm.model.transformer import Decoder, Encoder, ToLogits, Transformer

# Up to the last of these, a product takes as long as reading the weight: round up to one of them.
_SMALL_NUM_ROWS = (1, 4, 8)

_VECTOR_SIZE = 16  # elements in fp32 of the vectors of AVX-512
# A thread computes this number of bytes of logits for each token of the vocabulary at a time: for
# enough hypotheses that products are fast, and few enough that all these logits stay in a cache.
_PART_BYTES = 1024
# Pad the vocabulary to a multiple of the size of the blocks in which beam search reads it.
_VOCAB_MULTIPLE = 64
# Weights with at least this number of elements are large. In fp32, AMD CPUs multiply them by
# oneDNN; other CPUs pack them for MKL, and smaller ones only without AVX-512, where that helps.
LARGE_WEIGHT = 1 << 17
# In fp32 on AMD CPUs, oneDNN multiplies at least this number of rows by small weights, too: with
# fewer, calling it takes longer than it saves.
_MIN_ONEDNN_ROWS = 128
# In bf16, N rows are multiplied by a small weight [out, in] in fp32 if that takes at most this
# number of multiplications, N · in · out: calling oneDNN takes longer than they do.
_MAX_FP32_MULTIPLICATIONS = 1 << 20
# For one thread, MKL packs fp32 weights for this number of rows, and multiplies any other number by
# them, too. With more threads it would divide few outputs badly.
_PACKED_ROWS = 256

# Linear layers are operations of torch without a public name: `verification` compares them first.
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
HAS_INT8 = "onednn" in torch.backends.quantized.supported_engines
# The largest quantized weight, by whether the CPU has int8 units. A CPU without them adds two
# products with 8-bit activations in 16 bits, which 7-bit weights keep from overflowing.
_MAX_QUANTIZED_WEIGHT = {True: 127, False: 63}

# (x, relu) → x Wᵀ + b of a prepacked weight and bias, followed by ReLU if `relu`,
# or in a feed-forward network by its activation.
Linear = Callable[[Tensor, bool], Tensor]
Prepack = Callable[[Tensor, Tensor | None], Linear]
RoundUp = Callable[[int], int]


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
        for embedding in (model.source_embedding, model.target_embedding):
            embedding.dropout = Cast(self._dtype)
        for layer in (*model.encoder, *model.decoder):
            for name, module in list(layer.named_children()):
                if isinstance(module, Residual):
                    setattr(layer, name, ResidualInPlace(module))
                elif isinstance(module, FeedForward):
                    setattr(layer, name, PrepackedFeedForward(module, self.prepacked))
                else:
                    module.input = PrepackedProjection(module.input, self.prepacked)
                    module.heads = InferenceHeads(module.heads, RandomMasks())
                    module.output = PrepackedLinear(module.output, self.prepacked)
        model.encoder = PackedEncoder(model.encoder, self.round_up_rows)
        model.decoder = CpuDecoder(
            model.decoder, self.round_up_rows, compaction_threshold=self._compaction_threshold
        )
        model.to_logits = PrepackedToLogits(model.output_weight, model.output_bias, self.prepacked)
        model.part_rows = _PART_BYTES // self._dtype.itemsize
        return model.eval()

    def round_up_rows(self, num_rows: int) -> int:
        """Round the number of rows up, so that few distinct shapes occur."""
        if num_rows <= _SMALL_NUM_ROWS[-1]:
            return next(size for size in _SMALL_NUM_ROWS if size >= num_rows)
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
        if feed_forward.activation is not torch.relu:
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
        self._prepack = prepack

    @override
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = self._prepacked(x, False)
        logits[..., self._vocab_size :] = -math.inf
        return logits

    @override
    def projection(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        prepacked = self._prepack(weight, bias)
        return lambda x: prepacked(x, False)


class ResidualInPlace(Residual):
    """A residual connection that overwrites the output of the sub-layer."""

    def __init__(self, residual: Residual) -> None:
        nn.Module.__init__(self)
        self.norm, self.norm_first = residual.norm, residual.norm_first

    @override
    def add(self, x: Tensor, out: Tensor) -> Tensor:
        return out.add_(x)


class InferenceHeads(SentenceHeads):
    """Attends to cached keys by batched matrix products, and to packed sentences."""

    @override
    def attend_cached_dot_product(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        groups, num_heads, num_queries, width = query.shape
        # One pass casts queries and makes heads contiguous.
        queries = torch.empty(query.shape, dtype=key.dtype).copy_(query).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        # With beta=0, baddbmm reads the shape of its first argument only.
        unread = queries.new_empty(len(queries), num_queries, keys.size(2))
        with onednn_products() if key.is_contiguous() else contextlib.nullcontext():
            scores = torch.baddbmm(unread, queries, keys, beta=0, alpha=1 / math.sqrt(width))
            if bias is not None:
                scores.view(groups, num_heads, num_queries, -1).add_(bias)
            attended = torch.bmm(_softmax(scores), values)
        attended = attended.view(groups, num_heads, num_queries, -1)
        merged = query.new_empty(groups, num_queries, num_heads, values.size(-1))
        return merged.copy_(attended.transpose(1, 2)).view(groups * num_queries, -1)


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax of scores [N, Q, C] over their columns.

    torch's takes up to ten times as long for fewer columns than a vector has elements.
    """
    num_columns = scores.size(2)
    if num_columns >= _VECTOR_SIZE:
        return scores.softmax(-1)
    padded = F.pad(scores, (0, _VECTOR_SIZE - num_columns), value=-math.inf)
    return padded.softmax(-1)[:, :, :num_columns]


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


class CpuDecoder(Decoder):
    """A decoder that computes few distinct numbers of rows, and a single sentence by itself."""

    def __init__(
        self, decoder: Decoder, round_up_rows: RoundUp, *, compaction_threshold: float
    ) -> None:
        super().__init__(decoder)
        self._round_up_rows = round_up_rows
        self._compaction_threshold = compaction_threshold

    @override
    def start(self, encoded: Tensor, lengths: Tensor) -> DecodingState:
        layers = list(self.layers())
        if len(lengths) > 1 or not all(map(decodes_alone, layers)):
            return super().start(encoded, lengths)
        encoded = encoded[:, : int(lengths[0])]
        prepared = [SingleSentenceLayer.of(layer, encoded) for layer in layers]
        return SingleSentenceCache(prepared, layers[0].self_attention.heads, self._round_up_rows)

    @override
    def step(
        self, x: Tensor, cache: DecoderCache | SingleSentenceCache, outputs: Tensor | None
    ) -> Tensor:
        if isinstance(cache, DecoderCache):
            return super().step(x, cache, outputs)
        x = cache.step(x)
        return x if outputs is None or len(outputs) == len(x) else x.index_select(0, outputs)

    @override
    def choose_rows(self, num_hypotheses: int, outputs: Tensor | None) -> StepRows:
        """Choose all hypotheses, if leaving some out would cost more than it saves."""
        if outputs is not None and len(outputs) < self._compaction_threshold * num_hypotheses:
            return StepRows(num_hypotheses, self._round_up_rows(len(outputs)), computed=outputs)
        if outputs is not None and len(outputs) == num_hypotheses:
            outputs = None
        return StepRows(num_hypotheses, self._round_up_rows(num_hypotheses), outputs=outputs)


def prepack_plain(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return a linear layer of weight [out, in] and bias [out] that torch computes."""
    if HAS_MKL:  # whose products with a weight that is contiguous as [in, out] are faster
        weight = weight.t().contiguous().t()

    def linear(x: Tensor, relu: bool) -> Tensor:
        out = F.linear(x, weight, bias)
        return out.relu_() if relu else out

    return linear


def prepack_fp32(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return a linear layer of weight [out, in] and bias [out] in fp32, by MKL if available.

    On AMD CPUs oneDNN multiplies many rows or a large weight.
    """
    if this_cpu().vendor == "AuthenticAMD":
        return _prepack_fp32_on_amd(weight, bias)
    by_torch = prepack_plain(weight, bias)
    if not HAS_MKL or (this_cpu().has_avx512 and weight.numel() < LARGE_WEIGHT):
        return by_torch
    mkl: Any = torch.ops.mkl
    with one_thread():
        packed = mkl._mkl_reorder_linear_weight(weight, _PACKED_ROWS)
    # For several threads: packed for each small number of rows but one.
    packed_for_few: dict[int, Tensor] = {}

    def linear(x: Tensor, relu: bool) -> Tensor:
        num_rows = x.numel() // x.size(-1)
        if torch.get_num_threads() == 1:
            chosen = packed
        elif num_rows in _SMALL_NUM_ROWS[1:]:
            if num_rows not in packed_for_few:
                packed_for_few[num_rows] = mkl._mkl_reorder_linear_weight(weight, num_rows)
            chosen = packed_for_few[num_rows]
        else:
            return by_torch(x, relu)
        out: Tensor = mkl._mkl_linear(x, chosen, weight, bias, num_rows)
        return out.relu_() if relu else out

    return linear


def _prepack_fp32_on_amd(weight: Tensor, bias: Tensor | None) -> Linear:
    if not HAS_ONEDNN:
        return prepack_plain(weight, bias)
    by_onednn = _prepack_onednn(weight, bias)
    if weight.numel() >= LARGE_WEIGHT:
        return by_onednn
    by_torch = prepack_plain(weight, bias)

    def linear(x: Tensor, relu: bool) -> Tensor:
        num_rows = x.numel() // x.size(-1)
        return (by_onednn if num_rows >= _MIN_ONEDNN_ROWS else by_torch)(x, relu)

    return linear


def prepack_bf16(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return a linear layer of weight [out, in] and bias [out] in bf16, by oneDNN if available.

    Few rows are multiplied in fp32 by a small weight, which is rounded to bf16 all the same.
    """
    weight = weight.bfloat16()
    bias = None if bias is None else bias.bfloat16()
    if not HAS_ONEDNN:
        plain = prepack_plain(weight, bias)
        return lambda x, relu: plain(x.bfloat16(), relu)
    by_onednn = _prepack_onednn(weight, bias)
    if weight.numel() >= LARGE_WEIGHT:
        return by_onednn
    max_few = _MAX_FP32_MULTIPLICATIONS // weight.numel()
    in_fp32 = prepack_plain(weight.float(), None if bias is None else bias.float())

    def linear(x: Tensor, relu: bool) -> Tensor:
        if x.numel() // x.size(-1) <= max_few:
            return in_fp32(x.float(), relu).bfloat16()
        return by_onednn(x, relu)

    return linear


def _prepack_onednn(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return a linear layer that oneDNN computes in the dtype of its weight."""
    onednn: Any = torch.ops.mkldnn
    reordered, dtype = onednn._reorder_linear_weight(weight), weight.dtype
    product = onednn._linear_pointwise

    def linear(x: Tensor, relu: bool) -> Tensor:
        activation = "relu" if relu else "none"
        return cast("Tensor", product(x.to(dtype), reordered, bias, activation, [], ""))

    return linear


def prepack_int8(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return a linear layer of weight [out, in] and bias [out] in int8.

    Weights are quantized per output, to 8 bits, or to 7 on a CPU without int8 units; activations
    are quantized per call (dynamic quantization).
    """
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / _MAX_QUANTIZED_WEIGHT[this_cpu().has_int8]
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # The proposed replacement has no product that quantizes activations itself.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    max_few = _max_fbgemm_rows()
    for_many = _prepack_quantized(quantized, bias, "onednn")
    for_few = _prepack_quantized(quantized, bias, "fbgemm") if max_few else for_many
    int8: Any = torch.ops.quantized

    def linear(x: Tensor, relu: bool) -> Tensor:
        product = int8.linear_relu_dynamic if relu else int8.linear_dynamic
        num_rows = x.numel() // x.size(-1)
        return cast("Tensor", product(x, for_few if num_rows <= max_few else for_many, False))

    return linear


def _max_fbgemm_rows() -> int:
    """Return the largest number of rows that FBGEMM multiplies faster than oneDNN in int8, or 0."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return 0
    if not this_cpu().has_int8:
        return 96
    # It has no kernel for other int8 units, and its sums of 8-bit weights overflow without one.
    return 32 if "avx512_vnni" in this_cpu().flags else 0


def _prepack_quantized(weight: Tensor, bias: Tensor | None, engine: str) -> object:
    """Return a quantized weight [out, in] with a bias [out], prepacked by an engine."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        return torch.ops.quantized.linear_prepack(weight, bias)
    finally:
        torch.backends.quantized.engine = before


# By the arithmetic of matrix products.
PREPACK: dict[torch.dtype, Prepack] = {
    torch.float32: prepack_fp32,
    torch.bfloat16: prepack_bf16,
    torch.int8: prepack_int8,
}
