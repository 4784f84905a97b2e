"""The operations of a model's layers as a CPU computes them fastest if nothing is learned."""

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.backends.plain import Backend, PrepackedLinear
from tfm.backends.random_masks import RandomMasks
from tfm.backends.sentence_attention import SentenceAttention
from tfm.device.cpu import this_cpu

# Of so few rows a product takes as long as reading the weight. A few less are made as many.
_FEW_ROWS = (1, 4, 8)

# Operations of MKL's and oneDNN's own; torch offers no other way to them, and not on all CPUs.
_REORDER_FOR_MKL: Any = getattr(torch.ops.mkl, "_mkl_reorder_linear_weight", None)
_MULTIPLY_BY_MKL: Any = getattr(torch.ops.mkl, "_mkl_linear", None)
_REORDER: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_MULTIPLY: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_HAS_MKL: bool = torch.backends.mkl.is_available() and None not in (  # type: ignore[no-untyped-call]
    _REORDER_FOR_MKL,
    _MULTIPLY_BY_MKL,
)
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and None not in (  # type: ignore[no-untyped-call]
    _REORDER,
    _MULTIPLY,
)
HAS_INT8 = "onednn" in torch.backends.quantized.supported_engines
# The largest of 8-bit weights, and of 7-bit ones: two products of these with 8-bit activations,
# which a CPU without units for int8 adds up in 16 bits, do not overflow.
_MAX_WEIGHT_ELEMENTS = {True: 127, False: 63}

Prepack = Callable[[Tensor, Tensor | None], PrepackedLinear]


class CpuInferenceBackend(Backend):
    """See `Backend`: weights are put into the order that products read them in, once.

    Weights are known by where they are, so they must not change.

    Args:
        make_ready: Makes a weight [out, in] and a bias [out] ready.
        dtype: Of activations.
        compaction_threshold: See `Backend`.
        keeps_sizes: Whether each new number of rows costs preparations, as it does oneDNN: then
            few numbers are used.
    """

    single_sentence_fast_path = True

    def __init__(
        self,
        make_ready: Prepack,
        dtype: torch.dtype,
        *,
        compaction_threshold: float = 1.0,
        keeps_sizes: bool = False,
    ) -> None:
        self._make_ready = make_ready
        self._dtype = dtype
        self._keeps_sizes = keeps_sizes
        self.compaction_threshold = compaction_threshold
        self._ready: dict[tuple[int, int], tuple[Tensor, PrepackedLinear]] = {}
        self.packed_attention = SentenceAttention(RandomMasks())

    def cast_activations(self, x: Tensor) -> Tensor:
        """See `Backend`."""
        return x.to(self._dtype)

    def dropout(self, x: Tensor, dropout: float) -> Tensor:
        """See `Backend`."""
        _refuse_dropout(dropout)
        return x

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `Backend`."""
        return self._product(x, weight, bias)

    def linear_relu_dropout(
        self, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """See `Backend`."""
        _refuse_dropout(dropout)
        return self._product(x, weight, bias, relu=True)

    def add_linear_dropout(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:
        """See `Backend`."""
        _refuse_dropout(dropout)
        return self._product(x, weight, bias).add_(residual)

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Backend`."""
        return self._product(x, weight, None)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_bias: Tensor | None
    ) -> Tensor:
        """See `Backend`."""
        groups, num_heads, num_queries, width = query.shape
        # In one pass: the type of the keys, and heads foremost.
        queries = torch.empty(query.shape, dtype=key.dtype).copy_(query).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        # What is read of the first argument, if it counts for nothing, is its shape.
        unread = queries.new_empty(len(queries), num_queries, keys.size(2))
        scores = torch.baddbmm(unread, queries, keys, beta=0, alpha=1 / math.sqrt(width))
        if attention_bias is not None:
            scores.view(groups, num_heads, num_queries, -1).add_(attention_bias)
        attended = torch.bmm(scores.softmax(-1), values).view(groups, num_heads, num_queries, -1)
        joined = query.new_empty(groups, num_queries, num_heads, values.size(-1))
        return joined.copy_(attended.transpose(1, 2)).view(groups * num_queries, -1)

    def round_up_rows(self, needed: int) -> int:
        """See `Backend`."""
        if needed <= _FEW_ROWS[-1]:
            return next(size for size in _FEW_ROWS if size >= needed)
        if not self._keeps_sizes:
            return needed
        # Of four significant bits.
        step = 1 << max(0, needed.bit_length() - 4)
        return -(-needed // step) * step

    def prepack_linear(self, weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
        """See `Backend`."""
        key = weight.data_ptr(), len(weight)
        if key not in self._ready:
            # With the weight, so that nothing else takes its place.
            self._ready[key] = weight, self._make_ready(weight.detach(), bias)
        return self._ready[key][1]

    def _product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False
    ) -> Tensor:
        product = self.prepack_linear(weight, bias)
        rows = x.flatten(0, -2)
        spare = self.round_up_rows(len(rows)) - len(rows) if self._keeps_sizes else 0
        if not spare:
            return product(x, relu)
        out = product(F.pad(rows, (0, 0, 0, spare)), relu)[: len(rows)]
        return out.view(*x.shape[:-1], out.size(1))


def prepack_fp32(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """As torch does it, but for few rows, of which MKL reads the weight in an order of its own."""
    ready: dict[int, Tensor] = {}

    def product(x: Tensor, relu: bool) -> Tensor:
        num_rows = x.numel() // x.size(-1)
        if num_rows == 1 or num_rows not in _FEW_ROWS or not _HAS_MKL:
            out = F.linear(x, weight, bias)
        else:
            if num_rows not in ready:
                ready[num_rows] = _REORDER_FOR_MKL(weight, num_rows)
            out = _MULTIPLY_BY_MKL(x, ready[num_rows], weight, bias, num_rows)
        return out.relu_() if relu else out

    return product


def prepack_bf16(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """Multiply in bf16, by oneDNN if torch has it."""
    narrow_weight = weight.bfloat16()
    narrow_bias = None if bias is None else bias.bfloat16()
    if not HAS_ONEDNN:

        def plain_product(x: Tensor, relu: bool) -> Tensor:
            out = F.linear(x.bfloat16(), narrow_weight, narrow_bias)
            return out.relu_() if relu else out

        return plain_product
    ready = _REORDER(narrow_weight)

    def product(x: Tensor, relu: bool) -> Tensor:
        activation = "relu" if relu else "none"
        return cast("Tensor", _MULTIPLY(x.bfloat16(), ready, narrow_bias, activation, [], ""))

    return product


def prepack_int8(weight: Tensor, bias: Tensor | None) -> PrepackedLinear:
    """Multiply in int8: a scale for each output of the weight, one for all of x each time.

    Weights have 8 bits, or 7 on a CPU without units for int8.
    """
    largest = _MAX_WEIGHT_ELEMENTS[this_cpu().has_int8]
    scales = weight.abs().amax(dim=1).clamp(min=1e-12) / largest
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # What is to take its place has no product that scales what it multiplies by itself.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "onednn"
    try:
        ready = torch.ops.quantized.linear_prepack(quantized, bias)
    finally:
        torch.backends.quantized.engine = before

    def product(x: Tensor, relu: bool) -> Tensor:
        if relu:
            return cast("Tensor", torch.ops.quantized.linear_relu_dynamic(x, ready, False))
        return cast("Tensor", torch.ops.quantized.linear_dynamic(x, ready, False))

    return product


# How a weight is made ready for products in an arithmetic.
PREPACK: dict[torch.dtype, Prepack] = {
    torch.float32: prepack_fp32,
    torch.bfloat16: prepack_bf16,
    torch.int8: prepack_int8,
}


def _refuse_dropout(dropout: float) -> None:
    if dropout:
        raise ValueError("operations for inference have no dropout")
