"""Attention with dot-product or additive scores, with its masks (Vaswani et al. 2017, §3.2.1)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
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
    """Computes the sums q + k, which are d_k times as large as the scores, in chunks."""

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


@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which keys each query may attend to."""

    # [B] number of valid keys, which come first; None if all are valid.
    key_lengths: Tensor | None = None
    causal: bool = False  # whether query i sees keys 0 to i only
    # In self-attention, the number of keys that a query sees, including its own: its
    # neighbors on both sides, or the preceding ones if causal; None for all.
    window: int | None = None

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Return [B or 1, 1, T or 1, S], True where attention is allowed; None if all is."""
        if self.key_lengths is None and self.window is None and not self.causal:
            return None
        rows = torch.arange(num_queries, device=device)[:, None]
        columns = torch.arange(num_keys, device=device)
        if self.window is not None:
            return self.window_mask(rows, columns, num_keys)
        allowed = (columns <= rows)[None, None] if self.causal else None
        if self.key_lengths is not None:
            valid = (columns < self.key_lengths[:, None])[:, None, None, :]
            allowed = valid if allowed is None else allowed & valid
        return allowed

    def window_size(self) -> tuple[int, int]:
        """Return the numbers of keys before and after its own that a query sees in the window."""
        neighbors = (self.window or 1) - 1
        return (neighbors, 0) if self.causal else (neighbors // 2, neighbors - neighbors // 2)

    def window_mask(self, rows: Tensor, columns: Tensor, num_keys: int) -> Tensor:
        """Return [B or 1, 1, …], True where a key is valid and in the window of a query.

        Positions of queries, `rows`, and of keys, `columns`, broadcast to […]. Key positions may
        lie outside the sentence, which has `num_keys` tokens if there are no `key_lengths`.
        """
        before, after = self.window_size()
        distance = columns - rows
        window_mask = ((distance >= -before) & (distance <= after))[None, None]
        ends = columns.new_tensor([num_keys]) if self.key_lengths is None else self.key_lengths
        end = ends.view(-1, 1, *[1] * rows.dim())
        # Outputs at padding are ignored, but a softmax over no key is NaN: padding sees padding.
        return window_mask & (columns >= 0) & ((columns < end) | (rows >= end))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    *,
    additive_weight: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(scores) V, with dropout on the softmax (§3.2.1).

    Scores are QKᵀ / √d_k, or additive if `additive_weight` is given. Self-attention with a window r
    costs O(r · T), not O(T²).

    Args:
        query: [B, h, T, d_k].
        key: [B, h, S, d_k].
        value: [B, h, S, d_v].
        mask: Which keys each query may attend to; at least one.
        additive_weight: [h, d_k] of `additive_scores`.
        dropout: Probability of dropping an attention weight.

    Returns:
        [B, h, T, d_v].
    """
    num_queries, num_keys = query.size(2), key.size(2)
    if mask.window is not None and num_keys > 2 * mask.window:
        attended = _attend(*_blocks(query, key, value, mask), additive_weight, dropout)
        return attended.flatten(2, 3)[:, :, :num_queries]
    is_only_causal = mask.causal and mask.key_lengths is None and mask.window is None
    if is_only_causal and additive_weight is None:
        # Without a mask tensor, kernels skip the blocks of keys that are hidden.
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    allowed = mask.allowed(num_queries, num_keys, query.device)
    return _attend(query, key, value, allowed, additive_weight, dropout)


def attention_weights(
    query: Tensor, key: Tensor, mask: AttentionMask, *, additive_weight: Tensor | None = None
) -> Tensor:
    """Return [B, h, T, S], the weights by which `attention` multiplies values, before dropout."""
    allowed = mask.allowed(query.size(2), key.size(2), query.device)
    return _weights(query, key, allowed, additive_weight)


def _weights(
    query: Tensor, key: Tensor, allowed: Tensor | None, additive_weight: Tensor | None
) -> Tensor:
    if additive_weight is None:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    else:
        scores = additive_scores(query, key, additive_weight)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(dim=-1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    additive_weight: Tensor | None,
    dropout: float,
) -> Tensor:
    if additive_weight is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout
        )
    weights = _weights(query, key, allowed, additive_weight)
    return F.dropout(weights, dropout).to(value.dtype) @ value


def _blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut self-attention with a window r into blocks of r queries and the keys that they see.

    The n blocks are queries [B, h, n, r, d_k], keys and values [B, h, n, 2r - 1, …], and the mask
    [B or 1, 1, n, r, 2r - 1], True where attention is allowed.
    """
    window = mask.window or 1
    before, after = mask.window_size()
    num_keys = key.size(2)
    num_blocks = -(-num_keys // window)
    padding = num_blocks * window - num_keys
    padded = F.pad(query, (0, 0, 0, padding))
    queries = padded.reshape(*query.shape[:2], num_blocks, window, -1)
    keys, values = (
        F.pad(x, (0, 0, before, padding + after))
        .unfold(2, window + before + after, window)
        .transpose(-1, -2)
        for x in (key, value)
    )
    starts = window * torch.arange(num_blocks, device=key.device)[:, None, None]
    rows = starts + torch.arange(window, device=key.device)[:, None]
    columns = starts - before + torch.arange(window + before + after, device=key.device)
    return queries, keys, values, mask.window_mask(rows, columns, num_keys)
