"""What a search wants to know of the next token's logits first, of blocks of the vocabulary.

The best tokens are among those of the blocks with the greatest logits: nothing else needs sorting.
"""

import torch
from torch import Tensor

# So many logits at a time, which a CPU's cache holds.
_ELEMENTS_AT_ONCE = 1 << 18


def block_max_and_logsumexp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logit of each block, and the logarithm of the sum of all exponentials.

    This is the plain twin.

    Args:
        logits: [R, blocks, block] of R distributions; -inf where there is no token, or none that
            may be.

    Returns:
        [R, blocks] and [R], both fp32 (float64 of float64); -inf where all logits are.
    """
    precision = torch.promote_types(logits.dtype, torch.float32)
    num_rows = len(logits)
    block_max = logits.new_empty(logits.shape[:2], dtype=precision)
    logsumexp = logits.new_empty(num_rows, dtype=precision)
    num_elements = logits.shape[1:].numel()
    at_once = num_rows if logits.is_cuda else max(1, _ELEMENTS_AT_ONCE // num_elements)
    lowest = torch.finfo(precision).min
    for start in range(0, num_rows, at_once):
        part = slice(start, start + at_once)
        values = logits[part].to(precision)
        block_max[part] = values.amax(dim=2)
        # Finite: differences to it are numbers.
        most = block_max[part].amax(dim=1).clamp(min=lowest)
        exponentials = (values - most[:, None, None]).exp_()
        logsumexp[part] = exponentials.flatten(1).sum(dim=1).log_() + most
    return block_max, logsumexp
