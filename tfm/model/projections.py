"""The projections to queries, keys and values of all heads, as one weight."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class InputProjection(nn.Linear):
    """The projections to queries, keys and values of all heads, as one weight (§3.2.2).

    One weight, as in torch.nn.MultiheadAttention: self-attention needs one product.
    """

    def __init__(self, d_model: int, widths: Sequence[int]) -> None:
        super().__init__(d_model, sum(widths))
        self.part_widths = [widths[0], sum(widths[1:])]  # queries; keys and values

    def forward(self, x: Tensor) -> Tensor:
        """Project […, d_model] to queries, keys and values […, h · (2 d_k + d_v)]."""
        return self.linear(x, self.weight, self.bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project […, d_model] to […, h · d_k]."""
        return self.linear(x, *self.parts()[0])

    def keys_values(self, memory: Tensor) -> Tensor:
        """Project […, d_model] to keys and values […, h · (d_k + d_v)]."""
        return self.linear(memory, *self.parts()[1])

    def queries_and_keys_values(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of x […, d_model] and the keys and values of memory […, d_model]."""
        # Split once: the gradient of the weight is then one concatenation.
        for_queries, for_memory = self.parts()
        return self.linear(x, *for_queries), self.linear(memory, *for_memory)

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight [out, d_model] and bias [out] for queries, and for keys and values."""
        weights, biases = (torch.split(x, self.part_widths) for x in (self.weight, self.bias))
        return list(zip(weights, biases, strict=True))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x Wᵀ + b: […, in] → […, out]."""
        return F.linear(x, weight, bias)
