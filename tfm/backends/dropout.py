"""Masks of dropout on a CPU, with probabilities that are multiples of 2⁻¹⁶."""

import numpy as np
import torch
from torch import Tensor

_NUM_LEVELS = 1 << 16


def drop_threshold(dropout: float) -> int:
    """Return the threshold below which uniform unsigned 16-bit numbers mean "drop".

    Raises:
        ValueError: The probability is not in [0, 1).
    """
    threshold = round(dropout * _NUM_LEVELS)
    if not 0 <= threshold < _NUM_LEVELS:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    return threshold


def keep_scale(dropout: float) -> float:
    """Return the inverse of the exact probability of keeping an element."""
    return _NUM_LEVELS / (_NUM_LEVELS - drop_threshold(dropout))


class RandomMasks:
    """Masks of dropout on a CPU: one 64-bit number of SFC64 decides four elements.

    torch draws one element at a time from a Mersenne twister, in one thread.
    """

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Restart the generator; equal seeds draw equal masks."""
        self._generator = np.random.SFC64(seed)

    def draw(self, x: Tensor, dropout: float) -> Tensor:
        """Return a contiguous mask: 1 for each element to keep, 0 for each to drop.

        Args:
            x: Tensor of any shape, which gives the mask its shape and dtype.
            dropout: Probability of dropping an element.
        """
        raw = self._generator.random_raw(-(-x.numel() // 4))
        draws = torch.from_numpy(raw.view(np.int16))[: x.numel()].view(x.shape)
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        # torch compares signed 16-bit numbers.
        return torch.ge(draws, drop_threshold(dropout) - _NUM_LEVELS // 2, out=mask)
