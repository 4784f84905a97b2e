"""Attention of decoding in slots: the hypotheses of a sentence share columns of fixed room.

A slot has room for a sentence's source, or for the past of its hypotheses: at each position as many
columns as there are hypotheses, one each. As beam search goes on, hypotheses take over each other's
past. No column is moved then: ancestors tell whose column each hypothesis has at each position.
"""

import math

import torch
from torch import Tensor


def slot_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ancestors: Tensor | None = None
) -> Tensor:
    """softmax(QKᵀ / √d_k) V of the hypotheses of each slot, heads joined. This is the plain twin.

    Args:
        query: [N, K, h, d_k] of K hypotheses in each of N slots.
        key: [N, C, h, d_k], of which C ≥ the greatest end.
        value: [N, C, h, d_v].
        ends: [N] int64 how many columns, at least one, a slot's hypotheses see: the first ones; or
            with ancestors, so many positions.
        ancestors: [N, K, T] int16 for C = T · K: at each position a hypothesis sees the column of
            this one alone. If not given, all see all columns.

    Returns:
        [N, K, h · d_v], of the type of the query.
    """
    num_columns = key.size(1)
    positions = torch.arange(num_columns, device=key.device)
    if ancestors is None:
        visible = (positions < ends[:, None])[:, None]
    else:
        num_hypotheses = query.size(1)
        owners = positions % num_hypotheses
        positions = positions // num_hypotheses
        of_each = ancestors.repeat_interleave(num_hypotheses, dim=2)
        visible = (of_each == owners) & (positions < ends[:, None])[:, None]
    precision = torch.promote_types(query.dtype, torch.float32)
    scores = query.transpose(1, 2).to(precision) @ key.permute(0, 2, 3, 1).to(precision)
    scores = (scores / math.sqrt(query.size(3))).masked_fill(~visible[:, None], -math.inf)
    attended = scores.softmax(dim=-1) @ value.transpose(1, 2).to(precision)
    return attended.to(query.dtype).transpose(1, 2).flatten(2)
