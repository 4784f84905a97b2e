# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The kernels of `tfm.backends.triton.packed_attention`.

A tile of rows may lie across several short sentences. It looks at no other rows than those that one
of its own may see, and hides each row's strangers among them. Scores and attention weights exist in
tiles only; dropout's decisions are drawn again in the backward pass.
"""

import math

import triton
import triton.language as tl

from tfm.backends.philox import GROUP
from tfm.backends.triton.philox import kept

_GROUP = tl.constexpr(GROUP)
# Below every score, yet finite: differences to it are numbers.
_LOWEST = tl.constexpr(-1.0e30)
_LOG2_E = tl.constexpr(math.log2(math.e))
_LN_2 = tl.constexpr(math.log(2.0))
# Products of fp32 are sums of three that tensor cores can make; others are as they are.
_PRECISION = tl.constexpr("tf32x3")


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
    """One head of one tile of queries: softmax over its keys, a tile of them at a time."""
    head = tl.program_id(0)
    rows = tl.program_id(1) * tile + tl.arange(0, tile)
    first, end = _spans(seen_keys, rows, num_queries)
    q = _rows(query, rows, num_queries, query_row, head * query_head, key_width, key_block)
    highest = tl.full((tile,), _LOWEST, tl.float32)
    total = tl.zeros((tile,), tl.float32)
    sums = tl.zeros((tile, value_block), tl.float32)
    last = tl.max(end)
    for start in range(_lowest(first, end, num_keys) // _GROUP * _GROUP, last, tile):
        columns = start + tl.arange(0, tile)
        k = _rows(key, columns, last, key_row, head * key_head, key_width, key_block)
        v = _rows(value, columns, last, value_row, head * value_head, value_width, value_block)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
        # To the base 2, in which a GPU has its exponential.
        scores = tl.dot(q, tl.trans(k), input_precision=_PRECISION) * (scale * _LOG2_E)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        if threshold > 0:
            stays = kept(seed, head, rows, start, tile, threshold)
            weights = tl.where(stays, weights, 0.0)
        sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision=_PRECISION)
        highest = higher
    divisor = tl.where(total > 0.0, total, 1.0)
    result = sums * (keep_scale / divisor)[:, None]
    out_row = num_heads * value_width
    _store(attended, result, rows, num_queries, out_row, head, value_width, value_block)
    row_logsumexp = tl.where(total > 0.0, (highest + tl.log2(divisor)) * _LN_2, 0.0)
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
    """Gradient of one head of one tile of queries.

    It leaves behind the deltas that `backward_keys` needs: what softmax takes from all gradients
    of a row, its weighted mean, which is the product of the output and its gradient.
    """
    head = tl.program_id(0)
    rows = tl.program_id(1) * tile + tl.arange(0, tile)
    first, end = _spans(seen_keys, rows, num_queries)
    q = _rows(query, rows, num_queries, query_row, head * query_head, key_width, key_block)
    out_row, out_head = num_heads * value_width, head * value_width
    out = _rows(attended, rows, num_queries, out_row, out_head, value_width, value_block)
    d_out = _rows(grad, rows, num_queries, out_row, out_head, value_width, value_block)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), axis=1)
    tl.store(deltas + rows * num_heads + head, delta, mask=rows < num_queries)
    row_logsumexp = _numbers(logsumexp, rows, num_queries, num_heads, head)
    d_q = tl.zeros((tile, key_block), tl.float32)
    last = tl.max(end)
    for start in range(_lowest(first, end, num_keys) // _GROUP * _GROUP, last, tile):
        columns = start + tl.arange(0, tile)
        k = _rows(key, columns, last, key_row, head * key_head, key_width, key_block)
        v = _rows(value, columns, last, value_row, head * value_head, value_width, value_block)
        visible = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
        weights = _weights(q, k, row_logsumexp, visible, scale)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=_PRECISION)
        if threshold > 0:
            stays = kept(seed, head, rows, start, tile, threshold)
            d_weights = tl.where(stays, d_weights * keep_scale, 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q, input_precision=_PRECISION)
    _store(grad_query, d_q * scale, rows, num_queries, grad_query_row, head, key_width, key_block)


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
    """Gradients of one head of one tile of keys and values."""
    head = tl.program_id(0)
    first_column = tl.program_id(1) * tile
    columns = first_column + tl.arange(0, tile)
    first, end = _spans(seeing_queries, columns, num_keys)
    k = _rows(key, columns, num_keys, key_row, head * key_head, key_width, key_block)
    v = _rows(value, columns, num_keys, value_row, head * value_head, value_width, value_block)
    out_row, out_head = num_heads * value_width, head * value_width
    d_k = tl.zeros((tile, key_block), tl.float32)
    d_v = tl.zeros((tile, value_block), tl.float32)
    last = tl.max(end)
    for start in range(_lowest(first, end, num_queries), last, tile):
        rows = start + tl.arange(0, tile)
        q = _rows(query, rows, last, query_row, head * query_head, key_width, key_block)
        d_out = _rows(grad, rows, last, out_row, out_head, value_width, value_block)
        row_logsumexp = _numbers(logsumexp, rows, last, num_heads, head)
        delta = _numbers(deltas, rows, last, num_heads, head)
        visible = (rows[:, None] >= first[None, :]) & (rows[:, None] < end[None, :])
        weights = _weights(q, k, row_logsumexp, visible, scale)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=_PRECISION)
        used = weights
        if threshold > 0:
            stays = kept(seed, head, rows, first_column, tile, threshold)
            used = tl.where(stays, weights * keep_scale, 0.0)
            d_weights = tl.where(stays, d_weights * keep_scale, 0.0)
        d_scores = weights * (d_weights - delta[:, None])
        d_v = tl.dot(tl.trans(used.to(d_out.dtype)), d_out, d_v, input_precision=_PRECISION)
        d_k = tl.dot(tl.trans(d_scores.to(q.dtype)), q, d_k, input_precision=_PRECISION)
    _store(grad_key, d_k * scale, columns, num_keys, grad_key_row, head, key_width, key_block)
    _store(grad_value, d_v, columns, num_keys, grad_value_row, head, value_width, value_block)


@triton.jit
def _weights(
    q: tl.tensor, k: tl.tensor, row_logsumexp: tl.tensor, visible: tl.tensor, scale: tl.constexpr
) -> tl.tensor:
    """[rows, columns] the softmax again, from the logarithms of its sums."""
    scores = tl.dot(q, tl.trans(k), input_precision=_PRECISION) * (scale * _LOG2_E)
    return tl.where(visible, tl.exp2(scores - (row_logsumexp * _LOG2_E)[:, None]), 0.0)


@triton.jit
def _spans(spans: tl.tensor, rows: tl.tensor, num_rows: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The first of what each row sees, and the end of it; both 0 where there is no row."""
    first = tl.load(spans + 2 * rows, mask=rows < num_rows, other=0)
    end = tl.load(spans + 2 * rows + 1, mask=rows < num_rows, other=0)
    return first, end


@triton.jit
def _lowest(first: tl.tensor, end: tl.tensor, otherwise: tl.tensor) -> tl.tensor:
    """The first of all that a tile sees, if it sees any."""
    return tl.min(tl.where(first < end, first, otherwise))


@triton.jit
def _rows(
    pointer: tl.tensor, rows: tl.tensor, end: tl.tensor, row_stride: tl.constexpr,
    offset: tl.tensor, width: tl.constexpr, block: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[rows, block] rows before an end; zeros behind it and beyond their width."""
    places = tl.arange(0, block)
    pointers = pointer + offset + rows.to(tl.int64)[:, None] * row_stride + places[None, :]
    inside = (rows < end)[:, None] & (places < width)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _numbers(
    pointer: tl.tensor, rows: tl.tensor, end: tl.tensor, num_heads: tl.constexpr, head: tl.tensor
) -> tl.tensor:
    """[rows] one number of each row; zeros behind an end."""
    return tl.load(pointer + rows * num_heads + head, mask=rows < end, other=0.0)


@triton.jit
def _store(
    pointer: tl.tensor, result: tl.tensor, rows: tl.tensor, num_rows: tl.tensor,
    row_stride: tl.constexpr, head: tl.tensor, width: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """Write [rows, block] into one head of rows of heads that lie side by side."""
    places = tl.arange(0, block)
    pointers = pointer + rows.to(tl.int64)[:, None] * row_stride + head * width + places[None, :]
    inside = (rows < num_rows)[:, None] & (places < width)[None, :]
    tl.store(pointers, result.to(pointer.dtype.element_ty), mask=inside)
