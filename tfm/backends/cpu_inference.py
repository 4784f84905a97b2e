"""The inference backend of CPUs: linear layers with prepacked weights, in fp32, bf16 or int8."""

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from tfm.backends.dropout import RandomMasks
from tfm.backends.plain import PLAIN, Backend, PrepackedLinear
from tfm.backends.sentence_attention import SentenceAttention
from tfm.device.cpu import this_cpu

# Up to the last of these, a product takes as long as reading the weight: round up to one of them.
_SMALL_NUM_ROWS = (1, 4, 8)

# Operations without a public name: a version or build of torch may lack them.
_MKL_REORDER: Any = getattr(torch.ops.mkl, "_mkl_reorder_linear_weight", None)
_MKL_LINEAR: Any = getattr(torch.ops.mkl, "_mkl_linear", None)
_ONEDNN_REORDER: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_ONEDNN_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_HAS_MKL: bool = torch.backends.mkl.is_available() and None not in (  # type: ignore[no-untyped-call]
    _MKL_REORDER,
    _MKL_LINEAR,
)
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and None not in (  # type: ignore[no-untyped-call]
    _ONEDNN_REORDER,
    _ONEDNN_LINEAR,
)
_QUANTIZE: Any = getattr(torch, "quantize_per_channel", None)
_INT8_PREPACK: Any = getattr(torch.ops.quantized, "linear_prepack", None)
_INT8_LINEAR: Any = getattr(torch.ops.quantized, "linear_dynamic", None)
_INT8_LINEAR_RELU: Any = getattr(torch.ops.quantized, "linear_relu_dynamic", None)
HAS_INT8 = "onednn" in torch.backends.quantized.supported_engines and None not in (
    _QUANTIZE,
    _INT8_PREPACK,
    _INT8_LINEAR,
    _INT8_LINEAR_RELU,
)
# The largest quantized weight, by whether the CPU has int8 units. A CPU without them adds two
# products with 8-bit activations in 16 bits, which 7-bit weights keep from overflowing.
_MAX_QUANTIZED_WEIGHT = {True: 127, False: 63}

Prepack = Callable[[Tensor, Tensor | None], PrepackedLinear]


class CpuInferenceBackend(Backend):
    """Linear layers with weights that are prepacked once.

    The cache of prepacked weights is keyed by their addresses, so weights must not change.

    Args:
        prepack: Prepacks a weight [out, in] and a bias [out].
        dtype: Dtype of activations.
        compaction_threshold: The attribute of `Backend`.
        limit_sizes: Whether to compute few distinct numbers of rows: oneDNN prepares for each.
    """

    single_sentence_fast_path = True

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
        self.compaction_threshold = compaction_threshold
        self._prepacked: dict[tuple[int, int], tuple[Tensor, PrepackedLinear]] = {}
        self.packed_attention = SentenceAttention(RandomMasks())

    @override
    def cast_activations(self, x: Tensor) -> Tensor:
        return x.to(self._dtype)

    @override
    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        _refuse_dropout(dropout)
        return x

    @override
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._linear(x, weight, bias)

    @override
    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        _refuse_dropout(dropout)
        return self._linear(x, weight, bias, relu=True)

    @override
    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        _refuse_dropout(dropout)
        return self._linear(x, weight, bias).add_(residual)

    @override
    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._linear(x, weight, None)

    @override
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_bias: Tensor | None
    ) -> Tensor:
        groups, num_heads, num_queries, width = query.shape
        # One pass casts queries and makes heads contiguous.
        queries = torch.empty(query.shape, dtype=key.dtype).copy_(query).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        # With beta=0, baddbmm reads the shape of its first argument only.
        unread = queries.new_empty(len(queries), num_queries, keys.size(2))
        scores = torch.baddbmm(unread, queries, keys, beta=0, alpha=1 / math.sqrt(width))
        if attention_bias is not None:
            scores.view(groups, num_heads, num_queries, -1).add_(attention_bias)
        attended = torch.bmm(scores.softmax(-1), values).view(groups, num_heads, num_queries, -1)
        merged = query.new_empty(groups, num_queries, num_heads, values.size(-1))
        return merged.copy_(attended.transpose(1, 2)).view(groups * num_queries, -1)

    @override
    def round_up_rows(self, num_rows: int) -> int:
        if num_rows <= _SMALL_NUM_ROWS[-1]:
            return next(size for size in _SMALL_NUM_ROWS if size >= num_rows)
        if not self._limit_sizes:
            return num_rows
        step = 1 << max(0, num_rows.bit_length() - 4)  # four significant bits
        return -(-num_rows // step) * step

    @override
    def prepack_linear(self, weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
        key = weight.data_ptr(), len(weight)
        if key not in self._prepacked:
            # Hold the weight, so that its address is not reused.
            self._prepacked[key] = weight, self._prepack(weight.detach(), bias)
        return self._prepacked[key][1]

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False
    ) -> Tensor:
        linear = self.prepack_linear(weight, bias)
        rows = x.flatten(0, -2)
        num_spare = self.round_up_rows(len(rows)) - len(rows) if self._limit_sizes else 0
        if not num_spare:
            return linear(x, relu)
        out = linear(F.pad(rows, (0, 0, 0, num_spare)), relu)[: len(rows)]
        return out.view(*x.shape[:-1], out.size(1))


def prepack_fp32(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """Return a linear layer of weight [out, in] and bias [out] in fp32.

    MKL reorders the weight for each small number of rows but one.
    """
    reordered: dict[int, Tensor] = {}

    def linear(x: Tensor, relu: bool) -> Tensor:
        num_rows = x.numel() // x.size(-1)
        if num_rows == 1 or num_rows not in _SMALL_NUM_ROWS or not _HAS_MKL:
            out = F.linear(x, weight, bias)
        else:
            if num_rows not in reordered:
                reordered[num_rows] = _MKL_REORDER(weight, num_rows)
            out = _MKL_LINEAR(x, reordered[num_rows], weight, bias, num_rows)
        return out.relu_() if relu else out

    return linear


def prepack_bf16(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """Return a linear layer of weight [out, in] and bias [out] in bf16, by oneDNN if available."""
    weight = weight.bfloat16()
    bias = None if bias is None else bias.bfloat16()
    if not HAS_ONEDNN:
        plain = PLAIN.prepack_linear(weight, bias)
        return lambda x, relu: plain(x.bfloat16(), relu)
    reordered = _ONEDNN_REORDER(weight)

    def linear(x: Tensor, relu: bool) -> Tensor:
        activation = "relu" if relu else "none"
        return cast("Tensor", _ONEDNN_LINEAR(x.bfloat16(), reordered, bias, activation, [], ""))

    return linear


def prepack_int8(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """Return a linear layer of weight [out, in] and bias [out] in int8.

    Weights are quantized per output, to 8 bits, or to 7 on a CPU without int8 units; activations
    are quantized per call (dynamic quantization).
    """
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / _MAX_QUANTIZED_WEIGHT[this_cpu().has_int8]
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # The proposed replacement has no product that quantizes activations itself.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        quantized = _QUANTIZE(weight, scales, zeros, 0, torch.qint8)
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "onednn"
    try:
        prepacked = _INT8_PREPACK(quantized, bias)
    finally:
        torch.backends.quantized.engine = engine

    def linear(x: Tensor, relu: bool) -> Tensor:
        product = _INT8_LINEAR_RELU if relu else _INT8_LINEAR
        return cast("Tensor", product(x, prepacked, False))

    return linear


# By the arithmetic of matrix products.
PREPACK: dict[torch.dtype, Prepack] = {
    torch.float32: prepack_fp32,
    torch.bfloat16: prepack_bf16,
    torch.int8: prepack_int8,
}


def _refuse_dropout(dropout: float) -> None:
    if dropout:
        raise ValueError("backends for inference support no dropout")
