"""What stands between two sub-layers: dropout, the residual sum and its normalisation (§3.1)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm.kernels.philox import checked_seed, keep_scale, kept


def dropout_add_norm(
    residual: Tensor,
    branch: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum x + Dropout(y) and its layer normalisation: the plain twin.

    Post-norm goes on with the normalised sum alone. Pre-norm gives it to the next sub-layer, whose
    residual is the sum.

    Args:
        residual: [N, d_model] x.
        branch: [N, d_model] y, what a sub-layer made.
        weight: [d_model] of the normalisation.
        bias: [d_model] of the normalisation.
        eps: Added to the variance.
        dropout: Probability of dropping an element of y.
        seed: [1] int64 of the dropout; not needed without.

    Returns:
        [N, d_model] the sum and [N, d_model] its normalisation, of x's dtype.

    Raises:
        ValueError: Dropout without a seed.
    """
    if dropout > 0.0:
        num_rows, d_model = branch.shape
        stays = kept(
            checked_seed(seed), num_streams=1, num_rows=num_rows, num_columns=d_model,
            dropout=dropout,
        )  # fmt: skip
        branch = branch * stays[0] * keep_scale(dropout)
    total = (residual + branch).to(residual.dtype)
    precise = total.to(torch.promote_types(total.dtype, torch.float32))
    normed = F.layer_norm(
        precise, precise.shape[-1:], weight.to(precise.dtype), bias.to(precise.dtype), eps
    )
    return total, normed.to(total.dtype)
