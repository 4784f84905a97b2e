"""Additive attention scores (Bahdanau et al. 2015)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

# At most this many elements of the sums of queries and keys exist at a time.
_CHUNK_ELEMENTS = 1 << 24


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Return vᵀ tanh(q + k) of projected queries and keys (Bahdanau et al. 2015, A.1.2).

    Args:
        query: [B, h, …, T, d_k].
        key: [B, h, …, S, d_k].
        weight: [h, d_k] v of each head.

    Returns:
        [B, h, …, T, S].
    """
    scores: Tensor = _AdditiveScores.apply(query, key, weight)  # type: ignore[no-untyped-call]
    return scores


class _AdditiveScores(torch.autograd.Function):
    """Computes the scores in chunks: the sums q + k take d_k times their memory."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, weight)
        column = _per_head(weight.to(query.dtype), query).mT
        chunks = [
            (_tanh_of_sums(query[chunk], key) @ column).squeeze(-1) for chunk in _chunks(query, key)
        ]
        return torch.cat(chunks, dim=-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, weight = ctx.saved_tensors
        row = _per_head(weight.to(query.dtype), query)
        grad_query, grad_key = torch.empty_like(query), torch.zeros_like(key)
        grad_weight = torch.zeros_like(weight)
        summed_dims = [dim for dim in range(query.dim()) if dim not in (1, query.dim() - 1)]
        for chunk in _chunks(query, key):
            tanh = _tanh_of_sums(query[chunk], key)
            grad_weight += (grad[chunk].unsqueeze(-2) @ tanh).squeeze(-2).sum(summed_dims)
            slope = tanh.square_().neg_().add_(1).mul_(row).mul_(grad[chunk].unsqueeze(-1))
            grad_query[chunk] = slope.sum(-2)
            grad_key += slope.sum(-3)
        return grad_query, grad_key, grad_weight


def _tanh_of_sums(query: Tensor, key: Tensor) -> Tensor:
    """Return [B, h, …, T, S, d_k]."""
    return (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()


def _per_head(weight: Tensor, query: Tensor) -> Tensor:
    """View [h, d_k] to broadcast against [B, h, …, T, S, d_k]."""
    return weight.view(len(weight), *[1] * (query.dim() - 2), -1)


def _chunks(query: Tensor, key: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield indices that select chunks of T in tensors [B, h, …, T, d_k]."""
    rows = max(1, _CHUNK_ELEMENTS // max(1, key.numel()))
    for start in range(0, query.size(-2), rows):
        yield (..., slice(start, start + rows), slice(None))


def new_additive_weight(num_heads: int, key_width: int) -> nn.Parameter:
    """Draw v [h, d_k] of additive attention so that scores start with a variance of at most 1."""
    return nn.Parameter(torch.empty(num_heads, key_width).normal_(std=key_width**-0.5))
