"""Which keys each query sees, where sentences lie one behind the other without padding.

Sentences share one axis of tokens. Offsets, B + 1 of them, tell where each begins and the last one
ends. Both have a fixed capacity, so that every batch has the same shapes: offsets that are not used
repeat the last one, and rows behind it are padding, which gives zeros and gets zero gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Who sees whom: of each row one run of rows on the other side, from … up to, but not with, ….

    A sentence, the causal order and a window all hide what is before one row and behind another, so
    this says all of them. It is made once for a batch and serves all layers.

    Attributes:
        keys: [N, 2] int32, the keys that each query sees.
        queries: [M, 2] int32, the queries that see each key: the same, turned around.
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
    """Let each sentence's queries see its own keys; nothing waits for the device.

    Args:
        query_offsets: [B + 1] int32, ascending from 0.
        key_offsets: [B + 1] int32, the same for self-attention.
        num_queries: N, capacity of the axis of queries.
        num_keys: M, capacity of the axis of keys.
        before: In self-attention, how many keys before itself a query sees; None for all.
        after: In self-attention, how many keys behind itself a query sees; None for all. Causal
            attention has 0.

    Raises:
        ValueError: `before` or `after` where queries and keys are not the same tokens.
    """
    if (before is not None or after is not None) and num_queries != num_keys:
        raise ValueError(
            f"only self-attention has neighbors, but there are {num_queries} rows of queries "
            f"and {num_keys} of keys"
        )
    return Spans(
        _seen(query_offsets, key_offsets, num_queries, before, after),
        _seen(key_offsets, query_offsets, num_keys, after, before),
    )


def _seen(
    own: Tensor, other: Tensor, num_rows: int, before: int | None, after: int | None
) -> Tensor:
    """[num_rows, 2] the rows of the other side that belong to the sentence of each own row."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=own.device)
    sentence = torch.searchsorted(own, rows, right=True) - 1
    is_real = rows < own[-1]
    sentence = sentence.clamp(max=len(own) - 2)
    first, end = other[sentence], other[sentence + 1]
    if before is not None:
        first = torch.maximum(first, rows - before)
    if after is not None:
        end = torch.minimum(end, rows + after + 1)
    return torch.stack((first, end), dim=-1) * is_real[:, None]
