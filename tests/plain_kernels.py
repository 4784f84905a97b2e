"""References of the Triton kernels in plain torch, with the same names and signatures."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tfm.backends.cross_entropy import PADDING
from tfm.backends.dropout import PHILOX_GROUP, PHILOX_ROUNDS, drop_threshold, keep_scale
from tfm.backends.packing import Spans

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_HALF_WORD = 0xFFFF


def cross_entropy_(logits: Tensor, targets: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the losses of each row, and overwrite the logits by the gradient of their sum.

    The right class has 1 - ε and the V - 1 others share ε.

    Args:
        logits: [N, V]; afterwards the gradient of the sum of the smoothed losses.
        targets: [N] token ids, or `PADDING`.
        smoothing: ε.

    Returns:
        [N] smoothed losses and [N] negative log-likelihoods in nats, at least fp32; zeros for
        padding.
    """
    other = smoothing / (logits.size(1) - 1)
    precision = torch.promote_types(logits.dtype, torch.float32)
    is_real = targets != PADDING
    index = targets.clamp(min=0)[:, None]
    log_probs = logits.to(precision).log_softmax(dim=-1)
    nlls = -log_probs.gather(1, index)[:, 0]
    losses = (1.0 - smoothing - other) * nlls - other * log_probs.sum(dim=-1)
    gradient = log_probs.exp_().sub_(other)
    gradient.scatter_add_(
        1, index, torch.full_like(index, other + smoothing - 1.0, dtype=precision)
    )
    logits.copy_(torch.where(is_real[:, None], gradient, 0.0))
    return torch.where(is_real, losses, 0.0), torch.where(is_real, nlls, 0.0)


def packed_attention(
    projections: Sequence[Tensor],
    spans: Spans,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """Return softmax(QKᵀ / √d_k) V (§3.2.1) with dropout on the softmax, from all N · M scores.

    Args:
        projections: Queries [N, h, d_k], keys [M, h, d_k] and values [M, h, d_v]; or queries, and
            joint keys and values [M, 2, h, d_k]; or all three jointly, [N, 3, h, d_k].
        spans: Which keys each query sees.
        dropout: Probability of dropping an attention weight.
        seed: [1] int64; required for dropout.

    Returns:
        [N, h, d_v], zeros where a query sees nothing.
    """
    if len(projections) < 3:
        *separate, joint = projections
        projections = [*separate, *joint.unbind(1)]
    query, key, value = projections
    columns = torch.arange(len(key), device=key.device)
    visible = (columns >= spans.keys[:, :1]) & (columns < spans.keys[:, 1:])
    scores = torch.einsum("nhd,mhd->hnm", query, key) / math.sqrt(query.size(-1))
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    weights = weights.masked_fill(~visible, 0.0)  # NaN where nothing is visible
    if dropout > 0.0:
        keep = keep_mask(
            seed,
            num_streams=query.size(1),
            num_rows=len(query),
            num_columns=len(key),
            dropout=dropout,
        )
        weights = weights * keep * keep_scale(dropout)
    return torch.einsum("hnm,mhd->nhd", weights, value)


def keep_mask(
    seed: Tensor, *, num_streams: int, num_rows: int, num_columns: int, dropout: float
) -> Tensor:
    """Return the [num_streams, num_rows, num_columns] bool mask of the elements to keep.

    Args:
        seed: [1] int64.
        num_streams: Number of independent masks, such as heads of attention.
        num_rows: Rows of each.
        num_columns: Columns of each.
        dropout: Probability of dropping an element.
    """
    device = seed.device
    groups = torch.arange(-(-num_columns // PHILOX_GROUP), device=device)
    rows = torch.arange(num_rows, device=device)[:, None]
    streams = torch.arange(num_streams, device=device)[:, None, None]
    words = torch.stack(_philox(seed, groups, rows, streams), dim=-1)
    halves = torch.stack((words & _HALF_WORD, words >> 16), dim=-1)
    return (halves >= drop_threshold(dropout)).flatten(-3)[..., :num_columns]


def _philox(seed: Tensor, *counter: Tensor) -> tuple[Tensor, ...]:
    """Return four words, as int64, of the broadcast counters (c0, c1, c2, 0)."""
    c0, c1, c2 = counter
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(PHILOX_ROUNDS):
        # int64 overflow leaves both halves of the unsigned product correct.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & _WORD) ^ c1 ^ k0, second & _WORD
        c2, c3 = ((first >> 32) & _WORD) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + _KEY_INCREMENTS[0]) & _WORD, (k1 + _KEY_INCREMENTS[1]) & _WORD
    return c0, c1, c2, c3
