"""The loss of a batch: label-smoothed cross-entropy (Vaswani et al. 2017, §5.4)."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from typing_extensions import override

from tfm.backends.cross_entropy import label_smoothed_cross_entropy
from tfm.data.batching import Batch
from tfm.model.build import Model


class BatchLoss(nn.Module):
    """Smoothed loss and negative log-likelihood of batches, summed over target tokens.

    Both are scalars in nats.

    Args:
        model: The model.
        label_smoothing: ε, the probability that the wrong classes share.
        autocast: Returns the context of a forward pass.
    """

    def __init__(
        self,
        model: Model,
        *,
        label_smoothing: float,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._autocast = autocast

    @override
    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        model = self.model
        with self._autocast():
            return label_smoothed_cross_entropy(
                model.forward_packed(
                    batch.source, batch.sources, batch.target_input, batch.targets
                ),
                model.output_weight,
                batch.target_output,
                smoothing=self._label_smoothing,
                num_tokens=batch.num_tokens,
            )


def perplexity(nll: float) -> float:
    """Return the perplexity of a mean negative log-likelihood in nats, at most e^100."""
    return math.exp(min(nll, 100.0))
