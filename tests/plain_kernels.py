"""The kernels for GPUs in plain torch: the same names and signatures, for tests to compare with."""

import math

import torch
from torch import Tensor

from tfm.backends.philox import GROUP, ROUNDS, checked_seed, drop_below, keep_scale
from tfm.backends.spans import Spans

PADDING = -1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_HALF = 0xFFFF


def cross_entropy_(logits: Tensor, targets: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses of each row; the logits are overwritten by the gradient of their sum.

    The right class has 1 - ε and the V - 1 others share ε. This is the plain twin.

    Args:
        logits: [N, V]; afterwards the gradient of the smoothed losses' sum.
        targets: [N] right classes, or `PADDING`.
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


def kept(
    seed: Tensor, *, num_streams: int, num_rows: int, num_columns: int, dropout: float
) -> Tensor:
    """Which elements stay.

    Args:
        seed: [1] int64; another one, other decisions.
        num_streams: Independent tables of decisions: the heads of attention.
        num_rows: Rows of each.
        num_columns: Columns of each.
        dropout: Probability of dropping an element.

    Returns:
        [num_streams, num_rows, num_columns] bool.
    """
    device = seed.device
    groups = torch.arange(-(-num_columns // GROUP), device=device)
    rows = torch.arange(num_rows, device=device)[:, None]
    streams = torch.arange(num_streams, device=device)[:, None, None]
    words = torch.stack(_philox(seed, groups, rows, streams), dim=-1)
    halves = torch.stack((words & _HALF, words >> 16), dim=-1)
    return (halves >= drop_below(dropout)).flatten(-3)[..., :num_columns]


def _philox(seed: Tensor, *counter: Tensor) -> tuple[Tensor, ...]:
    """Four words, as int64, of counters (c0, c1, c2, 0), which are broadcast."""
    c0, c1, c2 = counter
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(ROUNDS):
        # 64 bits wrap, which leaves both halves of an unsigned product as they should be.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & _WORD) ^ c1 ^ k0, second & _WORD
        c2, c3 = ((first >> 32) & _WORD) ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3
