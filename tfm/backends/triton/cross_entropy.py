# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""Cross-entropy with label smoothing (Vaswani et al. 2017, §5.4), with its gradient in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tfm.backends.cross_entropy import PADDING

_PADDING = tl.constexpr(PADDING)
# Below every logit, but finite, to avoid -inf - -inf.
_LOWEST = tl.constexpr(-1.0e30)
# Logits per tile. The second pass over a row still finds it in the cache.
_COLUMNS = 2048
_LAUNCH = {"num_warps": 8, "enable_fp_fusion": True}


def cross_entropy_(logits: Tensor, targets: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the losses of each row, and overwrite the logits by the gradient of their sum.

    Args:
        logits: [N, V], contiguous in the last axis; afterwards the gradient of the sum of the
            smoothed losses.
        targets: [N] token ids, or `PADDING`.
        smoothing: ε.

    Returns:
        [N] smoothed losses and [N] negative log-likelihoods in nats, fp32; zeros for padding.
    """
    losses: tuple[Tensor, Tensor] = _cross_entropy(logits, targets, smoothing)
    return losses


@torch.library.custom_op("tfm::cross_entropy_", mutates_args=("logits",))
def _cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    nlls = torch.empty_like(losses)
    vocab_size = logits.size(1)
    _cross_entropy_rows[(len(logits),)](
        logits, targets, losses, nlls,
        # Strides are compile-time constants, so that loads can be vectorized.
        row_stride=logits.stride(0),
        target_stride=targets.stride(0),
        vocab_size=vocab_size,
        gold=1.0 - smoothing,
        other=smoothing / (vocab_size - 1),
        num_columns=min(_COLUMNS, triton.next_power_of_2(vocab_size)),
        **_LAUNCH,
    )  # fmt: skip
    return losses, nlls


@_cross_entropy.register_fake
def _(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    return losses, torch.empty_like(losses)


@triton.jit
def _cross_entropy_rows(
    logits: tl.tensor, targets: tl.tensor, losses: tl.tensor, nlls: tl.tensor,
    row_stride: tl.constexpr, target_stride: tl.constexpr, vocab_size: tl.constexpr,
    gold: tl.constexpr, other: tl.constexpr, num_columns: tl.constexpr,
) -> None:  # fmt: skip
    """Compute one row: sums over its logits, its loss, then its gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row * target_stride)
    is_real = target != _PADDING
    logits += row * row_stride
    columns = tl.arange(0, num_columns)
    # One running sum per lane until the end: a sum over lanes synchronizes them.
    running_max = tl.full((num_columns,), _LOWEST, tl.float32)
    running_sum = tl.zeros((num_columns,), tl.float32)
    logit_sums = tl.zeros((num_columns,), tl.float32)
    target_logits = tl.zeros((num_columns,), tl.float32)
    for start in range(0, vocab_size, num_columns):
        inside = start + columns < vocab_size
        x = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        x = tl.where(is_real, x, 0.0)  # padding may hold NaN
        new_max = tl.maximum(running_max, x)
        running_sum = running_sum * tl.exp(running_max - new_max) + tl.exp(x - new_max)
        running_max = new_max
        logit_sums += tl.where(inside, x, 0.0)
        target_logits += tl.where(start + columns == target, x, 0.0)
    row_max = tl.max(running_max)
    row_logsumexp = row_max + tl.log(tl.sum(running_sum * tl.exp(running_max - row_max)))
    nll = row_logsumexp - tl.sum(target_logits)
    loss = (gold - other) * nll + other * (vocab_size * row_logsumexp - tl.sum(logit_sums))
    tl.store(nlls + row, tl.where(is_real, nll, 0.0))
    tl.store(losses + row, tl.where(is_real, loss, 0.0))
    for start in range(0, vocab_size, num_columns):
        inside = start + columns < vocab_size
        x = tl.load(logits + start + columns, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp(x - row_logsumexp) - tl.where(start + columns == target, gold, other)
        gradient = tl.where(is_real, gradient, 0.0).to(logits.dtype.element_ty)
        tl.store(logits + start + columns, gradient, mask=inside)
