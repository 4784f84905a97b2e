"""Maxima of blocks of the vocabulary, to find the best next tokens without sorting all logits.

The n best tokens are in the n blocks with the greatest maxima.
"""

import torch
from torch import Tensor

# Logits per chunk: few enough to stay in a CPU's cache.
_CHUNK_ELEMENTS = 1 << 18


def block_max_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the greatest logit of each block, and the logsumexp of each row.

    Args:
        logits: [R, blocks, block] of R distributions; -inf for padding and forbidden tokens.

    Returns:
        [R, blocks] and [R], both fp32 (float64 of float64); -inf where all logits are.
    """
    precision = torch.promote_types(logits.dtype, torch.float32)
    num_rows = len(logits)
    block_max = logits.new_empty(logits.shape[:2], dtype=precision)
    logsumexp = logits.new_empty(num_rows, dtype=precision)
    row_size = logits.shape[1:].numel()
    chunk_size = num_rows if logits.is_cuda else max(1, _CHUNK_ELEMENTS // row_size)
    lowest = torch.finfo(precision).min
    for start in range(0, num_rows, chunk_size):
        chunk = slice(start, start + chunk_size)
        values = logits[chunk].to(precision)
        block_max[chunk] = values.amax(dim=2)
        # Finite, to avoid -inf - -inf.
        row_max = block_max[chunk].amax(dim=1).clamp(min=lowest)
        exponentials = (values - row_max[:, None, None]).exp_()
        logsumexp[chunk] = exponentials.flatten(1).sum(dim=1).log_() + row_max
    return block_max, logsumexp
