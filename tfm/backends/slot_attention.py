"""Attention over cache slots of fixed capacity, whose columns a sentence's hypotheses share.

A slot caches keys and values of a sentence's source, or of its hypotheses: at each position one
column per hypothesis. When beam search lets hypotheses inherit each other's prefixes, it copies no
column: ancestors say which hypothesis' column each hypothesis sees at each position.
"""

import math

import torch
from torch import Tensor


def slot_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None = None
) -> Tensor:
    """Return softmax(QKᵀ / √d_k) V of the hypotheses of each slot, heads merged.

    This is the reference of the Triton kernel.

    Args:
        query: [N, K, h, d_k] of K hypotheses in each of N slots.
        key: [N, C, h, d_k].
        value: [N, C, h, d_v].
        ends: [N] int64 number of visible columns of each slot, the first ones, from 1 to C; with
            ancestors, the number of visible positions.
        ancestors: [N, K, T] int16 for C = T · K: the hypothesis whose column is visible at each
            position. If None, all hypotheses see all columns.

    Returns:
        [N, K, h · d_v], of the query's dtype.
    """
    num_columns = key.size(1)
    positions = torch.arange(num_columns, device=key.device)
    if ancestors is None:
        visible = (positions < ends[:, None])[:, None]
    else:
        num_hypotheses = query.size(1)
        hypotheses = positions % num_hypotheses
        positions = positions // num_hypotheses
        column_ancestors = ancestors.repeat_interleave(num_hypotheses, dim=2)
        visible = (column_ancestors == hypotheses) & (positions < ends[:, None])[:, None]
    precision = torch.promote_types(query.dtype, torch.float32)
    scores = query.transpose(1, 2).to(precision) @ key.permute(0, 2, 3, 1).to(precision)
    scores = (scores / math.sqrt(query.size(3))).masked_fill(~visible[:, None], -math.inf)
    attended = scores.softmax(dim=-1) @ value.transpose(1, 2).to(precision)
    return attended.to(query.dtype).transpose(1, 2).flatten(2)
