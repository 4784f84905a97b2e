"""Attention over sentences that lie one behind the other, without padding between them.

Sentences share one axis of tokens. Offsets, B + 1 of them, tell where each begins and the last one
ends. Both have a fixed capacity, so that every batch has the same shapes: offsets that are not used
repeat the last one, and rows behind it are padding, which gives zeros and gets zero gradients.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tfm.kernels.philox import checked_seed, keep_scale, kept


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
            f"only self-attention has neighbours, but there are {num_queries} rows of queries "
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


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spans: Spans,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """softmax(QKᵀ / √d_k) V with dropout on the softmax (§3.2.1): the plain twin.

    It is what the kernels are tested against: all N · M scores exist at once.

    Args:
        query: [N, h, d_k].
        key: [M, h, d_k].
        value: [M, h, d_v].
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, h, d_v], zeros where a query sees nothing.

    Raises:
        ValueError: Dropout without a seed.
    """
    columns = torch.arange(len(key), device=key.device)
    visible = (columns >= spans.keys[:, :1]) & (columns < spans.keys[:, 1:])
    scores = torch.einsum("nhd,mhd->hnm", query, key) / math.sqrt(query.size(-1))
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    weights = weights.masked_fill(~visible, 0.0)  # not a number where nothing is seen
    if dropout > 0.0:
        stays = kept(
            checked_seed(seed),
            num_streams=query.size(1),
            num_rows=len(query),
            num_columns=len(key),
            dropout=dropout,
        )
        weights = weights * stays * keep_scale(dropout)
    return torch.einsum("hnm,mhd->nhd", weights, value)


def packed_self_attention(
    projected: Tensor, spans: Spans, *, dropout: float = 0.0, seed: Tensor | None = None
) -> Tensor:
    """`packed_attention` of [N, 3, h, d_k] queries, keys and values: [N, h, d_k]."""
    query, key, value = projected.unbind(1)
    return packed_attention(query, key, value, spans, dropout=dropout, seed=seed)


def packed_cross_attention(
    query: Tensor,
    key_value: Tensor,
    spans: Spans,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """`packed_attention` of [N, h, d_k] queries to [M, 2, h, d_k] keys and values: [N, h, d_k]."""
    key, value = key_value.unbind(1)
    return packed_attention(query, key, value, spans, dropout=dropout, seed=seed)
