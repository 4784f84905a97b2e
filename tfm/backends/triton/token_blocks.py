# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""The kernel of `tfm.backends.token_blocks`: logits are read from memory once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Below every logit, yet finite: differences to it are numbers.
_LOWEST = tl.constexpr(-1.0e30)
# Logits at a time, those counted that blocks lack to a power of two.
_TILE_ELEMENTS = 8192
_LAUNCH = {"num_warps": 8, "enable_fp_fusion": True}


def block_max_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logit of each block, and the logarithm of the sum of all exponentials.

    Args:
        logits: [R, blocks, block] of R distributions, best with those of a block side by side; -inf
            where there is no token, or none that may be.

    Returns:
        [R, blocks] and [R], both fp32; -inf where all logits are.
    """
    if logits.stride(2) != 1:
        logits = logits.contiguous()
    num_rows, num_blocks, block_size = logits.shape
    block_max = logits.new_empty(num_rows, num_blocks, dtype=torch.float32)
    logsumexp = logits.new_empty(num_rows, dtype=torch.float32)
    num_elements = triton.next_power_of_2(block_size)
    _reduce_blocks[(num_rows,)](
        logits, block_max, logsumexp,
        # Known when it is compiled, strides tell how many logits can be read at once.
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
    """One row, a tile of whole blocks at a time."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    block_max += row * num_blocks
    elements = tl.arange(0, num_elements)
    # The blocks of a place in the tile have sums of their own until the end.
    highest = tl.full((tile,), _LOWEST, tl.float32)
    exponentials = tl.zeros((tile,), tl.float32)
    for start in range(0, num_blocks, tile):
        blocks = start + tl.arange(0, tile)
        exists = blocks < num_blocks
        inside = exists[:, None] & (elements < block_size)[None, :]
        pointers = logits + blocks[:, None] * block_stride + elements[None, :]
        x = tl.load(pointers, mask=inside, other=float("-inf")).to(tl.float32)
        most = tl.max(x, axis=1)
        tl.store(block_max + blocks, most, mask=exists)
        higher = tl.maximum(highest, most)
        sums = tl.sum(tl.exp(x - higher[:, None]), axis=1)
        exponentials = exponentials * tl.exp(highest - higher) + sums
        highest = higher
    top = tl.max(highest)
    row_logsumexp = top + tl.log(tl.sum(exponentials * tl.exp(highest - top)))
    tl.store(logsumexp + row, row_logsumexp)
