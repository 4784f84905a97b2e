"""Masks of dropout on a CPU, many times as fast as torch draws them."""

import numpy as np
import torch
from torch import Tensor

# A draw is 16 bits; so many values there are.
_NUM_VALUES = 1 << 16
_LOWEST = -(1 << 15)


class RandomMasks:
    """Draws which elements to keep.

    torch draws one element after another from a Mersenne twister, in one thread. Here each draw of
    SFC64 decides about four elements with 16 bits each, so that the probability is met to within
    1 / 131,072: the factor that keeps the mean is that of the probability which is drawn with.
    """

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Start again; equal seeds draw equal masks."""
        self._generator = np.random.SFC64(seed)

    def draw(self, like: Tensor, dropout: float) -> Tensor:
        """Draw 1 for each element to keep and 0 for each to drop.

        Args:
            like: Of the mask's shape and type.
            dropout: Probability of dropping an element.
        """
        raw = self._generator.random_raw(-(-like.numel() // 4))
        draws = torch.from_numpy(raw.view(np.int16))[: like.numel()].view(like.shape)
        kept = torch.empty_like(like, memory_format=torch.contiguous_format)
        return torch.ge(draws, _LOWEST + _num_dropped(dropout), out=kept)


def kept_scale(dropout: float) -> float:
    """What kept elements are multiplied by, so that the mean stays."""
    return _NUM_VALUES / (_NUM_VALUES - _num_dropped(dropout))


def _num_dropped(dropout: float) -> int:
    return round(dropout * _NUM_VALUES)
