# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""`tfm.backends.slot_attention` in a fused kernel, which reads only the columns in use.

Their number is read on the device, so that nothing synchronizes and CUDA graphs can capture it.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tfm.backends.triton.packed_attention_kernels import LOG2_E, LOWEST, PRECISION, load_rows

# The largest row of a head in bytes: for any kernel, and for prefetching tiles.
_MAX_BYTES, _MAX_PREFETCH_BYTES = 2048, 1024
_LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}


def slot_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None = None
) -> Tensor:
    """Return the [N, K, h · d_v] attention over cache slots, as the reference does, in one kernel.

    Sums are fp32; slots without visible columns yield zeros. Columns after the ends are never read.
    Tensors are copied unless their last axis is contiguous.

    Raises:
        ValueError: The shape of the ancestors does not fit, or heads are too wide.
    """
    num_slots, num_hypotheses, num_heads = query.shape[:3]
    num_columns, value_width = key.size(1), value.size(3)
    if ancestors is not None:
        num_positions, remainder = divmod(num_columns, num_hypotheses)
        if remainder or ancestors.shape != (num_slots, num_hypotheses, num_positions):
            raise ValueError(
                f"ancestors of shape {list(ancestors.shape)} do not fit queries of shape "
                f"{list(query.shape)} and {num_columns} columns"
            )
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    attended = query.new_empty(num_slots, num_hypotheses, num_heads * value_width)
    constants = _constants(query, key, value, ends)
    _attend_slots[num_heads, num_slots, triton.cdiv(num_hypotheses, constants["tile"])](
        query, key, value, attended, ends, ancestors, num_columns,
        query.stride(0), key.stride(0), value.stride(0),
        *((0, 0, 0) if ancestors is None else ancestors.stride()),
        **constants,
    )  # fmt: skip
    return attended


def _tiles(query: Tensor, value: Tensor) -> dict[str, int]:
    """Return the numbers of hypotheses and columns per tile and of pipeline stages that fit."""
    num_bytes = max(query.size(3), value.size(3)) * query.element_size()
    if num_bytes > _MAX_BYTES:
        raise ValueError(f"a row of a head has {num_bytes} bytes; at most {_MAX_BYTES} fit")
    # Few slots mean few programs to hide latency: prefetch two tiles of columns.
    num_stages = 3 if num_bytes <= _MAX_PREFETCH_BYTES else 1
    if query.dtype == torch.float32:
        num_bytes *= 2  # tf32x3 splits operands
    column_tile = 64 if num_bytes <= 256 else 32 if num_bytes <= 512 else 16
    tile = min(column_tile, max(16, triton.next_power_of_2(query.size(1))))
    return {"tile": tile, "column_tile": column_tile, "num_stages": num_stages}


def _constants(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> dict[str, Any]:
    """Return the compile-time constants: of model and beam size, but not of batch or capacity."""
    num_hypotheses, num_heads, key_width = query.shape[1:]
    value_width = value.size(3)
    return {
        "ends_stride": ends.stride(0),
        "query_row": query.stride(1),
        "query_head": query.stride(2),
        "key_row": key.stride(1),
        "key_head": key.stride(2),
        "value_row": value.stride(1),
        "value_head": value.stride(2),
        "num_hypotheses": num_hypotheses,
        "num_heads": num_heads,
        "key_width": key_width,
        "value_width": value_width,
        "key_block": max(16, triton.next_power_of_2(key_width)),
        "value_block": max(16, triton.next_power_of_2(value_width)),
        "scale": 1.0 / math.sqrt(key_width),
        **_tiles(query, value),
        **_LAUNCH,
    }


# Compile once for all capacities: it is impossible during the capture of a CUDA graph.
@triton.jit(
    do_not_specialize=[
        "num_columns", "ancestors_slot", "ancestors_hypothesis", "ancestors_position"
    ]
)  # fmt: skip
def _attend_slots(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, attended: tl.tensor, ends: tl.tensor,
    ancestors: tl.tensor, num_columns: tl.tensor, query_slot: tl.tensor, key_slot: tl.tensor,
    value_slot: tl.tensor, ancestors_slot: tl.tensor, ancestors_hypothesis: tl.tensor,
    ancestors_position: tl.tensor, ends_stride: tl.constexpr,
    query_row: tl.constexpr, query_head: tl.constexpr, key_row: tl.constexpr,
    key_head: tl.constexpr, value_row: tl.constexpr, value_head: tl.constexpr,
    num_hypotheses: tl.constexpr, num_heads: tl.constexpr, key_width: tl.constexpr,
    value_width: tl.constexpr, key_block: tl.constexpr, value_block: tl.constexpr,
    tile: tl.constexpr, column_tile: tl.constexpr, scale: tl.constexpr,
) -> None:  # fmt: skip
    """Compute one head of a tile of hypotheses: online softmax over tiles of columns."""
    head = tl.program_id(0)
    slot = tl.program_id(1).to(tl.int64)
    hypotheses = tl.program_id(2) * tile + tl.arange(0, tile)
    end = tl.load(ends + slot * ends_stride)
    if ancestors is not None:
        end *= num_hypotheses
        ancestors += slot * ancestors_slot
    end = tl.minimum(end, num_columns).to(tl.int32)
    query += slot * query_slot + head * query_head
    key += slot * key_slot + head * key_head
    value += slot * value_slot + head * value_head
    q = load_rows(query, hypotheses, num_hypotheses, query_row, 0, key_width, key_block)
    running_max = tl.full((tile,), LOWEST, tl.float32)
    running_sum = tl.zeros((tile,), tl.float32)
    acc = tl.zeros((tile, value_block), tl.float32)
    for start in range(0, end, column_tile):
        columns = start + tl.arange(0, column_tile)
        k = load_rows(key, columns, end, key_row, 0, key_width, key_block)
        v = load_rows(value, columns, end, value_row, 0, value_width, value_block)
        visible = (columns < end)[None, :]
        if ancestors is not None:
            positions = columns // num_hypotheses * ancestors_position
            places = hypotheses[:, None] * ancestors_hypothesis + positions[None, :]
            exists = visible & (hypotheses < num_hypotheses)[:, None]
            visible_hypotheses = tl.load(ancestors + places, mask=exists, other=-1)
            visible = visible_hypotheses == (columns % num_hypotheses)[None, :]
        # Base 2, because GPUs have exp2.
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        running_max = new_max
    result = acc / tl.where(running_sum > 0.0, running_sum, 1.0)[:, None]
    elements = tl.arange(0, value_block)
    attended += (slot * num_hypotheses * num_heads + head) * value_width
    pointers = attended + hypotheses[:, None] * (num_heads * value_width) + elements[None, :]
    inside = (hypotheses < num_hypotheses)[:, None] & (elements < value_width)[None, :]
    tl.store(pointers, result.to(attended.dtype.element_ty), mask=inside)
