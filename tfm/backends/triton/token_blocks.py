# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The kernel of `tfm.backends.token_blocks`, which reads logits from memory once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Below every logit, but finite, to avoid -inf - -inf.
_LOWEST = tl.constexpr(-1.0e30)
# Logits per tile, with blocks padded to a power of two.
_TILE_ELEMENTS = 8192
_LAUNCH = {"num_warps": 8, "enable_fp_fusion": True}


def block_max_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return [R, blocks] maxima and [R] logsumexp in fp32, as the reference does.

    Logits are copied unless their last axis is contiguous.
    """
    if logits.stride(2) != 1:
        logits = logits.contiguous()
    num_rows, num_blocks, block_size = logits.shape
    block_max = logits.new_empty(num_rows, num_blocks, dtype=torch.float32)
    logsumexp = logits.new_empty(num_rows, dtype=torch.float32)
    num_elements = triton.next_power_of_2(block_size)
    _reduce_blocks[(num_rows,)](
        logits, block_max, logsumexp,
        # Strides are compile-time constants, so that loads can be vectorized.
        row_stride=logits.stride(0),
        block_stride=logits.stride(1),
        num_blocks=num_blocks,
        block_size=block_size,
        tile=min(max(1, _TILE_ELEMENTS // num_elements), triton.next_power_of_2(num_blocks)),
        num_elements=num_elements,
        **_LAUNCH,
    )  # fmt: skip
    return block_max, logsumexp


@triton.jit
def _reduce_blocks(
    logits: tl.tensor, block_max: tl.tensor, logsumexp: tl.tensor,
    row_stride: tl.constexpr, block_stride: tl.constexpr, num_blocks: tl.constexpr,
    block_size: tl.constexpr, tile: tl.constexpr, num_elements: tl.constexpr,
) -> None:  # fmt: skip
    """Reduce one row, a tile of whole blocks at a time."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    block_max += row * num_blocks
    elements = tl.arange(0, num_elements)
    # One running sum per block of a tile; they are added at the end.
    running_max = tl.full((tile,), _LOWEST, tl.float32)
    running_sum = tl.zeros((tile,), tl.float32)
    for start in range(0, num_blocks, tile):
        blocks = start + tl.arange(0, tile)
        exists = blocks < num_blocks
        inside = exists[:, None] & (elements < block_size)[None, :]
        pointers = logits + blocks[:, None] * block_stride + elements[None, :]
        x = tl.load(pointers, mask=inside, other=float("-inf")).to(tl.float32)
        maxima = tl.max(x, axis=1)
        tl.store(block_max + blocks, maxima, mask=exists)
        new_max = tl.maximum(running_max, maxima)
        sums = tl.sum(tl.exp(x - new_max[:, None]), axis=1)
        running_sum = running_sum * tl.exp(running_max - new_max) + sums
        running_max = new_max
    row_max = tl.max(running_max)
    row_logsumexp = row_max + tl.log(tl.sum(running_sum * tl.exp(running_max - row_max)))
    tl.store(logsumexp + row, row_logsumexp)
