# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"
"""Cross-entropy with label smoothing (§5.4): each logit is read and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The target of a row that is padding: it has no loss and no gradient.
PADDING = -1
_PADDING = tl.constexpr(PADDING)
# Below every logit, yet finite: differences to it are numbers.
_LOWEST = tl.constexpr(-1.0e30)
# Logits at a time. The second time that a row is looked at, it is in the cache still.
_COLUMNS = 2048
_LAUNCH = {"num_warps": 8, "enable_fp_fusion": True}


def cross_entropy_(logits: Tensor, targets: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses of each row; the logits are overwritten by the gradient of their sum.

    Args:
        logits: [N, V], the logits of a row side by side; afterwards the gradient of the smoothed
            losses' sum.
        targets: [N] right classes, or `PADDING`.
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
    _rows[(len(logits),)](
        logits, targets, losses, nlls,
        # Known when it is compiled, a stride tells how many logits can be read at once.
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
def _rows(
    logits: tl.tensor, targets: tl.tensor, losses: tl.tensor, nlls: tl.tensor,
    row_stride: tl.constexpr, target_stride: tl.constexpr, vocab_size: tl.constexpr,
    gold: tl.constexpr, other: tl.constexpr, num_columns: tl.constexpr,
) -> None:  # fmt: skip
    """One row: the sums over its logits, then its loss, then its gradient in their place."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row * target_stride)
    is_real = target != _PADDING
    logits += row * row_stride
    columns = tl.arange(0, num_columns)
    # Each lane has sums of its own until the end: a sum over lanes waits for all of them.
    highest = tl.full((num_columns,), _LOWEST, tl.float32)
    exponentials = tl.zeros((num_columns,), tl.float32)
    plain = tl.zeros((num_columns,), tl.float32)
    at_target = tl.zeros((num_columns,), tl.float32)
    for start in range(0, vocab_size, num_columns):
        inside = start + columns < vocab_size
        x = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        x = tl.where(is_real, x, 0.0)  # whatever stands in padding, its sums are numbers
        higher = tl.maximum(highest, x)
        exponentials = exponentials * tl.exp(highest - higher) + tl.exp(x - higher)
        highest = higher
        plain += tl.where(inside, x, 0.0)
        at_target += tl.where(start + columns == target, x, 0.0)
    top = tl.max(highest)
    row_logsumexp = top + tl.log(tl.sum(exponentials * tl.exp(highest - top)))
    nll = row_logsumexp - tl.sum(at_target)
    loss = (gold - other) * nll + other * (vocab_size * row_logsumexp - tl.sum(plain))
    tl.store(nlls + row, tl.where(is_real, nll, 0.0))
    tl.store(losses + row, tl.where(is_real, loss, 0.0))
    for start in range(0, vocab_size, num_columns):
        inside = start + columns < vocab_size
        x = tl.load(logits + start + columns, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp(x - row_logsumexp) - tl.where(start + columns == target, gold, other)
        gradient = tl.where(is_real, gradient, 0.0).to(logits.dtype.element_ty)
        tl.store(logits + start + columns, gradient, mask=inside)
