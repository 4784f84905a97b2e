"""Linear layers with prepacked weights on CPUs, in fp32, bf16 or int8."""

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.machine.compute import HAS_MKL, one_thread
from tfm.machine.cpu import this_cpu

# Up to the last of these, a product takes as long as reading the weight: round up to one of them.
SMALL_NUM_ROWS = (1, 4, 8)

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
        elif num_rows in SMALL_NUM_ROWS[1:]:
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

    Products of few rows and a small weight are computed in fp32, with the weight rounded to bf16.
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
