# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""Attention of packed sentences in fused kernels, as operations of torch with gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from tfm.backends.philox import checked_seed, drop_below, keep_scale
from tfm.backends.spans import Spans
from tfm.backends.triton.packed_attention_kernels import backward_keys, backward_queries, forward

# Registers hold two programs of so many warps; loops of a few rounds need no pipeline.
_LAUNCH = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spans: Spans,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """softmax(QKᵀ / √d_k) V with dropout on the softmax (§3.2.1), in fused kernels.

    Sums are fp32, whatever the arithmetic of the tensors. Gradients are the same in every run.

    Args:
        query: [N, h, d_k], best with the elements of a head side by side.
        key: [M, h, d_k].
        value: [M, h, d_v].
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, h, d_v], zeros where a query sees nothing.

    Raises:
        ValueError: Dropout without a seed, or spans of other rows.
    """
    return _attended([query, key, value], spans, dropout, seed)


def packed_self_attention(
    projected: Tensor, spans: Spans, *, dropout: float = 0.0, seed: Tensor | None = None
) -> Tensor:
    """`packed_attention`, whose gradients stay side by side as one matrix product needs them.

    Args:
        projected: [N, 3, h, d_k] queries, keys and values.
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, h, d_k].

    Raises:
        ValueError: Dropout without a seed, or spans of other rows.
    """
    return _attended([projected], spans, dropout, seed)


def packed_cross_attention(
    query: Tensor,
    key_value: Tensor,
    spans: Spans,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """`packed_attention`, whose gradients of keys and values stay side by side.

    Args:
        query: [N, h, d_k].
        key_value: [M, 2, h, d_k] keys and values.
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, h, d_k].

    Raises:
        ValueError: Dropout without a seed, or spans of other rows.
    """
    return _attended([query, key_value], spans, dropout, seed)


def _attended(parts: list[Tensor], spans: Spans, dropout: float, seed: Tensor | None) -> Tensor:
    query, key, _value = _split(parts)
    if (len(query), len(key)) != (len(spans.keys), len(spans.queries)):
        raise ValueError(
            f"{len(query)} rows of queries and {len(key)} of keys, but spans of "
            f"{len(spans.keys)} and {len(spans.queries)}"
        )
    if dropout > 0.0:
        seed = checked_seed(seed)
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    attended: Tensor = _attend(parts, spans.keys, spans.queries, seed, dropout)[0]
    return attended


def _split(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, which are three tensors, or parts of two or of one."""
    match parts:
        case [projected]:
            query, key, value = projected.unbind(1)
        case [query, key_value]:
            key, value = key_value.unbind(1)
        case _:
            query, key, value = parts
    return query, key, value


@torch.library.custom_op("tfm::packed_attention", mutates_args=())
def _attend(
    parts: Sequence[Tensor],
    seen_keys: Tensor,
    seeing_queries: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """What the queries get, and [N, h] fp32 logarithms of the sums that softmax divides by."""
    query, key, value = _split(parts)
    attended, logsumexp = _new_results(query, value)
    constants = _constants(query, key, value, dropout)
    forward[query.size(1), triton.cdiv(len(query), constants["tile"])](
        query, key, value, attended, logsumexp, seen_keys, seed, len(query), len(key), **constants
    )
    return attended, logsumexp


@torch.library.custom_op("tfm::packed_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    parts: Sequence[Tensor],
    attended: Tensor,
    logsumexp: Tensor,
    seen_keys: Tensor,
    seeing_queries: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> list[Tensor]:
    """Gradients of the parts."""
    grad = grad.contiguous()
    gradients = _new_gradients(parts)
    query, key, value = _split(parts)
    grad_query, grad_key, grad_value = _split(gradients)
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


def _new_gradients(parts: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts]


@_attend.register_fake
def _(parts: Sequence[Tensor], *_rest: Any) -> tuple[Tensor, Tensor]:
    query, _key, value = _split(parts)
    return _new_results(query, value)


@_attend_backward.register_fake
def _(_grad: Tensor, parts: Sequence[Tensor], *_rest: Any) -> list[Tensor]:
    return _new_gradients(parts)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, seen_keys, seeing_queries, seed, ctx.dropout = inputs
    ctx.save_for_backward(*output, seen_keys, seeing_queries, seed, *parts)


def _gradients(ctx: Any, grad: Tensor, _grad_log_sums: Tensor) -> tuple[list[Tensor] | None, ...]:
    attended, logsumexp, seen_keys, seeing_queries, seed, *parts = ctx.saved_tensors
    gradients = _attend_backward(
        grad, parts, attended, logsumexp, seen_keys, seeing_queries, seed, ctx.dropout
    )
    return gradients, None, None, None, None


_attend.register_autograd(_gradients, setup_context=_save)


def _tile(query: Tensor, value: Tensor) -> int:
    """Rows of a tile: as many as registers hold.

    Raises:
        ValueError: Heads too wide for any.
    """
    num_bytes = max(query.size(2), value.size(2)) * query.element_size()
    if num_bytes > 2048:
        raise ValueError(f"a row of a head takes {num_bytes} bytes, but 2048 at most fit")
    if query.dtype == torch.float32:
        num_bytes *= 2  # its products are made in pieces
    return 64 if num_bytes <= 256 else 32 if num_bytes <= 512 else 16


def _constants(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """What a kernel is compiled for; strides too, which tell how much can be read at once."""
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
        "threshold": drop_below(dropout),
        "keep_scale": keep_scale(dropout),
        "scale": 1.0 / math.sqrt(key_width),
        **_LAUNCH,
    }
