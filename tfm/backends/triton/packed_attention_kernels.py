# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The kernels of `tfm.backends.triton.packed_attention`.

A tile of rows may span several short sentences. A program loads the other rows that any row of its
tile sees, and masks each row's scores by its own span. Scores and weights exist in tiles only; the
backward pass recomputes them and the dropout masks.
"""

import math

import triton
import triton.language as tl

from tfm.backends.dropout import PHILOX_GROUP
from tfm.backends.triton.philox import keep_mask

_GROUP = tl.constexpr(PHILOX_GROUP)
# Below every score, but finite, to avoid -inf - -inf.
LOWEST = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(math.log2(math.e))
_LN_2 = tl.constexpr(math.log(2.0))
# Multiplies fp32 by three TF32 products on tensor cores; other dtypes ignore this.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def forward(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, attended: tl.tensor, logsumexp: tl.tensor,
    seen_keys: tl.tensor, seed: tl.tensor, num_queries: tl.tensor, num_keys: tl.tensor,
    query_row: tl.constexpr, query_head: tl.constexpr, key_row: tl.constexpr,
    key_head: tl.constexpr, value_row: tl.constexpr, value_head: tl.constexpr,
    num_heads: tl.constexpr, key_width: tl.constexpr, value_width: tl.constexpr,
    key_block: tl.constexpr, value_block: tl.constexpr, tile: tl.constexpr,
    threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr,
) -> None:  # fmt: skip
    """Compute one head of a tile of queries: online softmax over tiles of keys."""
    head = tl.program_id(0)
    rows = tl.program_id(1) * tile + tl.arange(0, tile)
    first, end = _load_spans(seen_keys, rows, num_queries)
    q = load_rows(query, rows, num_queries, query_row, head * query_head, key_width, key_block)
    running_max = tl.full((tile,), LOWEST, tl.float32)
    running_sum = tl.zeros((tile,), tl.float32)
    acc = tl.zeros((tile, value_block), tl.float32)
    last = tl.max(end)
    for start in range(_first_visible(first, end, num_keys) // _GROUP * _GROUP, last, tile):
        columns = start + tl.arange(0, tile)
        k = load_rows(key, columns, last, key_row, head * key_head, key_width, key_block)
        v = load_rows(value, columns, last, value_row, head * value_head, value_width, value_block)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
        # Base 2, because GPUs have exp2.
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        if threshold > 0:
            keep = keep_mask(seed, head, rows, start, tile, threshold)
            weights = tl.where(keep, weights, 0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        running_max = new_max
    divisor = tl.where(running_sum > 0.0, running_sum, 1.0)
    result = acc * (keep_scale / divisor)[:, None]
    out_row = num_heads * value_width
    _store_rows(attended, result, rows, num_queries, out_row, head, value_width, value_block)
    row_logsumexp = tl.where(running_sum > 0.0, (running_max + tl.log2(divisor)) * _LN_2, 0.0)
    tl.store(logsumexp + rows * num_heads + head, row_logsumexp, mask=rows < num_queries)


@triton.jit
def backward_queries(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, attended: tl.tensor, logsumexp: tl.tensor,
    grad: tl.tensor, deltas: tl.tensor, grad_query: tl.tensor,
    seen_keys: tl.tensor, seed: tl.tensor, num_queries: tl.tensor, num_keys: tl.tensor,
    grad_query_row: tl.constexpr,
    query_row: tl.constexpr, query_head: tl.constexpr, key_row: tl.constexpr,
    key_head: tl.constexpr, value_row: tl.constexpr, value_head: tl.constexpr,
    num_heads: tl.constexpr, key_width: tl.constexpr, value_width: tl.constexpr,
    key_block: tl.constexpr, value_block: tl.constexpr, tile: tl.constexpr,
    threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr,
) -> None:  # fmt: skip
    """Compute the gradient of one head of a tile of queries, and the deltas for `backward_keys`.

    A row's delta is the weighted mean of the gradients of its weights, which the backward pass of
    softmax subtracts: the dot product of the output and its gradient.
    """
    head = tl.program_id(0)
    rows = tl.program_id(1) * tile + tl.arange(0, tile)
    first, end = _load_spans(seen_keys, rows, num_queries)
    q = load_rows(query, rows, num_queries, query_row, head * query_head, key_width, key_block)
    out_row, out_head = num_heads * value_width, head * value_width
    out = load_rows(attended, rows, num_queries, out_row, out_head, value_width, value_block)
    d_out = load_rows(grad, rows, num_queries, out_row, out_head, value_width, value_block)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), axis=1)
    tl.store(deltas + rows * num_heads + head, delta, mask=rows < num_queries)
    row_logsumexp = _load_scalars(logsumexp, rows, num_queries, num_heads, head)
    d_q = tl.zeros((tile, key_block), tl.float32)
    last = tl.max(end)
    for start in range(_first_visible(first, end, num_keys) // _GROUP * _GROUP, last, tile):
        columns = start + tl.arange(0, tile)
        k = load_rows(key, columns, last, key_row, head * key_head, key_width, key_block)
        v = load_rows(value, columns, last, value_row, head * value_head, value_width, value_block)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
        weights = _recompute_weights(q, k, row_logsumexp, visible, scale)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        if threshold > 0:
            keep = keep_mask(seed, head, rows, start, tile, threshold)
            d_weights = tl.where(keep, d_weights * keep_scale, 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q, input_precision=PRECISION)
    _store_rows(
        grad_query, d_q * scale, rows, num_queries, grad_query_row, head, key_width, key_block
    )


@triton.jit
def backward_keys(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, logsumexp: tl.tensor, grad: tl.tensor,
    deltas: tl.tensor, grad_key: tl.tensor, grad_value: tl.tensor,
    seeing_queries: tl.tensor, seed: tl.tensor, num_queries: tl.tensor, num_keys: tl.tensor,
    grad_key_row: tl.constexpr, grad_value_row: tl.constexpr,
    query_row: tl.constexpr, query_head: tl.constexpr, key_row: tl.constexpr,
    key_head: tl.constexpr, value_row: tl.constexpr, value_head: tl.constexpr,
    num_heads: tl.constexpr, key_width: tl.constexpr, value_width: tl.constexpr,
    key_block: tl.constexpr, value_block: tl.constexpr, tile: tl.constexpr,
    threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr,
) -> None:  # fmt: skip
    """Compute the gradients of one head of a tile of keys and values."""
    head = tl.program_id(0)
    first_column = tl.program_id(1) * tile
    columns = first_column + tl.arange(0, tile)
    first, end = _load_spans(seeing_queries, columns, num_keys)
    k = load_rows(key, columns, num_keys, key_row, head * key_head, key_width, key_block)
    v = load_rows(value, columns, num_keys, value_row, head * value_head, value_width, value_block)
    out_row, out_head = num_heads * value_width, head * value_width
    d_k = tl.zeros((tile, key_block), tl.float32)
    d_v = tl.zeros((tile, value_block), tl.float32)
    last = tl.max(end)
    for start in range(_first_visible(first, end, num_queries), last, tile):
        rows = start + tl.arange(0, tile)
        q = load_rows(query, rows, last, query_row, head * query_head, key_width, key_block)
        d_out = load_rows(grad, rows, last, out_row, out_head, value_width, value_block)
        row_logsumexp = _load_scalars(logsumexp, rows, last, num_heads, head)
        delta = _load_scalars(deltas, rows, last, num_heads, head)
        visible = (rows[:, None] >= first[None, :]) & (rows[:, None] < end[None, :])
        weights = _recompute_weights(q, k, row_logsumexp, visible, scale)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        kept_weights = weights
        if threshold > 0:
            keep = keep_mask(seed, head, rows, first_column, tile, threshold)
            kept_weights = tl.where(keep, weights * keep_scale, 0.0)
            d_weights = tl.where(keep, d_weights * keep_scale, 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        d_v = tl.dot(tl.trans(kept_weights.to(d_out.dtype)), d_out, d_v, input_precision=PRECISION)
        d_k = tl.dot(tl.trans(d_scores.to(q.dtype)), q, d_k, input_precision=PRECISION)
    _store_rows(grad_key, d_k * scale, columns, num_keys, grad_key_row, head, key_width, key_block)
    _store_rows(grad_value, d_v, columns, num_keys, grad_value_row, head, value_width, value_block)


@triton.jit
def _recompute_weights(
    q: tl.tensor, k: tl.tensor, row_logsumexp: tl.tensor, visible: tl.tensor, scale: tl.constexpr
) -> tl.tensor:
    """Return [rows, columns] attention weights, recomputed from the saved logsumexp."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    return tl.where(visible, tl.exp2(scores - (row_logsumexp * LOG2_E)[:, None]), 0.0)


@triton.jit
def _load_spans(
    spans: tl.tensor, rows: tl.tensor, num_rows: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first row that each row sees and the end (exclusive); 0 beyond the rows."""
    first = tl.load(spans + 2 * rows, mask=rows < num_rows, other=0)
    end = tl.load(spans + 2 * rows + 1, mask=rows < num_rows, other=0)
    return first, end


@triton.jit
def _first_visible(first: tl.tensor, end: tl.tensor, otherwise: tl.tensor) -> tl.tensor:
    """Return the first row that any row of a tile sees, or `otherwise`."""
    return tl.min(tl.where(first < end, first, otherwise))


@triton.jit
def load_rows(
    pointer: tl.tensor, rows: tl.tensor, end: tl.tensor, row_stride: tl.constexpr,
    offset: tl.tensor, width: tl.constexpr, block: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load [rows, block], with zeros for rows from the end on and columns beyond the width."""
    elements = tl.arange(0, block)
    pointers = pointer + offset + rows.to(tl.int64)[:, None] * row_stride + elements[None, :]
    inside = (rows < end)[:, None] & (elements < width)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _load_scalars(
    pointer: tl.tensor, rows: tl.tensor, end: tl.tensor, num_heads: tl.constexpr, head: tl.tensor
) -> tl.tensor:
    """Load [rows] scalars of one head, with zeros for rows from the end on."""
    return tl.load(pointer + rows * num_heads + head, mask=rows < end, other=0.0)


@triton.jit
def _store_rows(
    pointer: tl.tensor, result: tl.tensor, rows: tl.tensor, num_rows: tl.tensor,
    row_stride: tl.constexpr, head: tl.tensor, width: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """Store [rows, block] as one head of rows with all heads."""
    elements = tl.arange(0, block)
    pointers = pointer + rows.to(tl.int64)[:, None] * row_stride + head * width + elements[None, :]
    inside = (rows < num_rows)[:, None] & (elements < width)[None, :]
    tl.store(pointers, result.to(pointer.dtype.element_ty), mask=inside)
