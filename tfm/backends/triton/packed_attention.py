# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""Attention in packed batches by fused kernels, as differentiable torch operations."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from tfm.backends.dropout import drop_threshold, keep_scale
from tfm.backends.packing import Spans
from tfm.backends.triton.packed_attention_kernels import backward_keys, backward_queries, forward

# Registers hold two programs of 4 warps each; short loops need no pipeline.
_LAUNCH = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def packed_attention(
    projections: Sequence[Tensor], spans: Spans, *, dropout: float, seed: Tensor | None
) -> Tensor:
    """Return softmax(QKᵀ / √d_k) V (§3.2.1) with dropout on the softmax, in fused kernels.

    Sums are fp32. Gradients need no atomic additions, and are joint where projections are, as the
    backward pass of a joint projection needs them. Tensors are copied unless their last axis is
    contiguous.

    Args:
        projections: Queries [N, h, d_k], keys [M, h, d_k] and values [M, h, d_v]; or queries, and
            joint keys and values [M, 2, h, d_k]; or all three jointly, [N, 3, h, d_k].
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64; required for dropout.

    Returns:
        [N, h, d_v], zeros where a query sees nothing.

    Raises:
        ValueError: Spans have other numbers of rows, or heads are too wide.
    """
    query, key, _value = _split_projections(projections)
    if (len(query), len(key)) != (len(spans.keys), len(spans.queries)):
        raise ValueError(
            f"{len(query)} rows of queries and {len(key)} of keys, but spans for "
            f"{len(spans.keys)} and {len(spans.queries)}"
        )
    projections = [x if x.stride(-1) == 1 else x.contiguous() for x in projections]
    attended: Tensor = _attend(projections, spans.keys, spans.queries, seed, dropout)[0]
    return attended


def _split_projections(projections: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    match projections:
        case [projected]:
            query, key, value = projected.unbind(1)
        case [query, key_value]:
            key, value = key_value.unbind(1)
        case _:
            query, key, value = projections
    return query, key, value


@torch.library.custom_op("tfm::packed_attention", mutates_args=())
def _attend(
    projections: Sequence[Tensor],
    seen_keys: Tensor,
    seeing_queries: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return the results and the [N, h] fp32 logsumexp of scores."""
    query, key, value = _split_projections(projections)
    attended, logsumexp = _new_results(query, value)
    constants = _constants(query, key, value, dropout)
    forward[query.size(1), triton.cdiv(len(query), constants["tile"])](
        query, key, value, attended, logsumexp, seen_keys, seed, len(query), len(key), **constants
    )
    return attended, logsumexp


@torch.library.custom_op("tfm::packed_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    projections: Sequence[Tensor],
    attended: Tensor,
    logsumexp: Tensor,
    seen_keys: Tensor,
    seeing_queries: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> list[Tensor]:
    """Return the gradients of the projections."""
    grad = grad.contiguous()
    gradients = _new_gradients(projections)
    query, key, value = _split_projections(projections)
    grad_query, grad_key, grad_value = _split_projections(gradients)
    deltas = torch.empty_like(logsumexp)
    num_heads, sizes = query.size(1), (len(query), len(key))
    constants = _constants(query, key, value, dropout)
    tile = constants["tile"]
    backward_queries[num_heads, triton.cdiv(len(query), tile)](
        query, key, value, attended, logsumexp, grad, deltas, grad_query, seen_keys, seed, *sizes,
        grad_query_row=grad_query.stride(0), **constants,
    )  # fmt: skip
    backward_keys[num_heads, triton.cdiv(len(key), tile)](
        query, key, value, logsumexp, grad, deltas, grad_key, grad_value, seeing_queries, seed,
        *sizes, grad_key_row=grad_key.stride(0), grad_value_row=grad_value.stride(0), **constants,
    )  # fmt: skip
    return gradients


def _new_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    attended = query.new_empty(*query.shape[:2], value.size(2))
    return attended, query.new_empty(query.shape[:2], dtype=torch.float32)


def _new_gradients(projections: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in projections]


@_attend.register_fake
def _(projections: Sequence[Tensor], *_rest: Any) -> tuple[Tensor, Tensor]:
    query, _key, value = _split_projections(projections)
    return _new_results(query, value)


@_attend_backward.register_fake
def _(_grad: Tensor, projections: Sequence[Tensor], *_rest: Any) -> list[Tensor]:
    return _new_gradients(projections)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    projections, seen_keys, seeing_queries, seed, ctx.dropout = inputs
    ctx.save_for_backward(*output, seen_keys, seeing_queries, seed, *projections)


def _backward(ctx: Any, grad: Tensor, _grad_logsumexp: Tensor) -> tuple[list[Tensor] | None, ...]:
    attended, logsumexp, seen_keys, seeing_queries, seed, *projections = ctx.saved_tensors
    gradients = _attend_backward(
        grad, projections, attended, logsumexp, seen_keys, seeing_queries, seed, ctx.dropout
    )
    return gradients, None, None, None, None


_attend.register_autograd(_backward, setup_context=_save_for_backward)


def _tile(query: Tensor, value: Tensor) -> int:
    """Return the number of rows of a tile that registers hold."""
    num_bytes = max(query.size(2), value.size(2)) * query.element_size()
    if num_bytes > 2048:
        raise ValueError(f"a row of a head has {num_bytes} bytes; at most 2048 fit")
    if query.dtype == torch.float32:
        num_bytes *= 2  # tf32x3 splits operands
    return 64 if num_bytes <= 256 else 32 if num_bytes <= 512 else 16


def _constants(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """Return the compile-time constants, with strides, so that loads can be vectorized."""
    key_width, value_width = query.size(2), value.size(2)
    return {
        "query_row": query.stride(0),
        "query_head": query.stride(1),
        "key_row": key.stride(0),
        "key_head": key.stride(1),
        "value_row": value.stride(0),
        "value_head": value.stride(1),
        "num_heads": query.size(1),
        "key_width": key_width,
        "value_width": value_width,
        "key_block": max(16, triton.next_power_of_2(key_width)),
        "value_block": max(16, triton.next_power_of_2(value_width)),
        "tile": _tile(query, value),
        "threshold": drop_threshold(dropout),
        "keep_scale": keep_scale(dropout),
        "scale": 1.0 / math.sqrt(key_width),
        **_LAUNCH,
    }
