"""What search needs of a model, and several models as one."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class DecoderState(Protocol):
    """Where the decoding of a batch stands; only the model looks inside.

    A deep copy of it goes on independently; so it must not hold the model's weights.
    """

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index, among the B·K present hypotheses, of each that goes on; those
                in one row belong to one sentence, and sentences keep their order.
        """


class SearchableModel(Protocol):
    """A model that can encode and step.

    Attributes:
        max_positions: The most tokens it can take in on either side; None if there is no limit.
    """

    max_positions: int | None

    def start(self, source: Tensor, lengths: Tensor) -> DecoderState:
        """Encode [B, S] sources of [B] lengths and stand before the first token, K = 1."""

    def step(self, tokens: Tensor, state: Any, rows: Tensor | None = None) -> Tensor:
        """Take in the newest tokens [B, K]; return [B, K, V] logits of the next.

        If [R] rows among the B·K hypotheses are given, return [R, V] logits of these: nothing that
        goes on comes from the others.
        """


class Ensemble:
    """Several models that agree on a vocabulary; their probabilities are averaged.

    Args:
        models: At least one model.
    """

    def __init__(self, models: Sequence[SearchableModel]) -> None:
        self._models = models
        limits = [model.max_positions for model in models if model.max_positions is not None]
        self.max_positions = min(limits, default=None)

    def start(self, source: Tensor, lengths: Tensor) -> "EnsembleState":
        """Start every model."""
        return EnsembleState([model.start(source, lengths) for model in self._models])

    def step(self, tokens: Tensor, state: "EnsembleState", rows: Tensor | None = None) -> Tensor:
        """Step every model; return [B, K, V] or [R, V] logarithms of the mean probabilities."""
        log_probs = [
            model.step(tokens, each, rows).float().log_softmax(dim=-1)
            for model, each in zip(self._models, state.states, strict=True)
        ]
        return mean_probability(torch.stack(log_probs))


class EnsembleState:
    """The states of the models of an ensemble."""

    def __init__(self, states: Sequence[DecoderState]) -> None:
        self.states = states

    def reorder(self, rows: Tensor) -> None:
        """Reorder every model's state."""
        for state in self.states:
            state.reorder(rows)


def mean_probability(log_probs: Tensor) -> Tensor:
    """The logarithm of the mean of N probabilities, given theirs [N, …]."""
    return log_probs.logsumexp(dim=0) - math.log(len(log_probs))
