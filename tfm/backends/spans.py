"""Which keys each query sees in a packed batch: the mask of attention, as spans of rows.

Offsets, B + 1 of them, give the first row of each sentence and the end of the last one. Both axes
have a fixed capacity, so that all batches have the same shapes: unused offsets repeat the last one,
and rows after it are padding, which yields zeros and gets zero gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """For each row, the first visible row of the other axis and the end (exclusive).

    Sentence boundaries, the causal mask and a window each leave one contiguous span visible.

    Attributes:
        keys: [N, 2] int32, the keys that each query sees.
        queries: [M, 2] int32, the queries that see each key: the transposed mask.
    """

    keys: Tensor
    queries: Tensor


def attention_spans(
    query_offsets: Tensor,
    key_offsets: Tensor,
    *,
    num_queries: int,
    num_keys: int,
    before: int | None = None,
    after: int | None = None,
) -> Spans:
    """Return spans in which each sentence's queries see its keys, without synchronizing.

    Args:
        query_offsets: [B + 1] int32, ascending from 0.
        key_offsets: [B + 1] int32, the same for self-attention.
        num_queries: N, the number of rows of queries.
        num_keys: M, the number of rows of keys.
        before: In self-attention, the number of earlier keys that a query sees; None for all.
        after: The same for later keys: 0 if causal.

    Raises:
        ValueError: `before` or `after` is given although the axes differ.
    """
    if (before is not None or after is not None) and num_queries != num_keys:
        raise ValueError(
            "causal masks and windows need self-attention, but there are "
            f"{num_queries} rows of queries and {num_keys} of keys"
        )
    return Spans(
        _visible_spans(query_offsets, key_offsets, num_queries, before, after),
        _visible_spans(key_offsets, query_offsets, num_keys, after, before),
    )


def _visible_spans(
    offsets: Tensor, other_offsets: Tensor, num_rows: int, before: int | None, after: int | None
) -> Tensor:
    """Return the [num_rows, 2] spans of the other axis that each row sees."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=offsets.device)
    sentence = torch.searchsorted(offsets, rows, right=True) - 1
    is_real = rows < offsets[-1]
    sentence = sentence.clamp(max=len(offsets) - 2)
    first, end = other_offsets[sentence], other_offsets[sentence + 1]
    if before is not None:
        first = torch.maximum(first, rows - before)
    if after is not None:
        end = torch.minimum(end, rows + after + 1)
    return torch.stack((first, end), dim=-1) * is_real[:, None]
