"""Cross-entropy with label smoothing over logits, whose place its gradient takes (§5.4)."""

import torch
from torch import Tensor

# The target of a row that is padding: it has no loss and no gradient.
PADDING = -1


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
