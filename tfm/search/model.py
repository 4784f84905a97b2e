"""What search needs of a model, and several models as one."""

import math
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


class DecoderState(Protocol):
    """Where the decoding of a batch stands; only the model looks inside."""

    def reorder(self, rows: Tensor) -> None:
        """Go on with some hypotheses only, in another order.

        Args:
            rows: [B', K'] index, among the B·K present hypotheses, of each that goes on; those
                in one row belong to one sentence, and sentences keep their order.
        """


State = TypeVar("State", bound=DecoderState)


class SearchableModel(Protocol[State]):
    """A model that can encode and step."""

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """Encode [B, S] sources of [B] lengths and stand before the first token, K = 1."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Take in the newest tokens [B, K]; return [B, K, V] logits of the next."""


class Ensemble(Generic[State]):
    """Several models that agree on a vocabulary; their probabilities are averaged.

    Args:
        models: At least one model.
    """

    def __init__(self, models: Sequence[SearchableModel[State]]) -> None:
        self._models = models

    def start(self, source: Tensor, lengths: Tensor) -> "EnsembleState[State]":
        """Start every model."""
        return EnsembleState([model.start(source, lengths) for model in self._models])

    def step(self, tokens: Tensor, state: "EnsembleState[State]") -> Tensor:
        """Step every model; return [B, K, V] logarithms of the mean probabilities."""
        log_probs = [
            model.step(tokens, part).float().log_softmax(dim=-1)
            for model, part in zip(self._models, state.parts, strict=True)
        ]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))


class EnsembleState(Generic[State]):
    """The states of the models of an ensemble."""

    def __init__(self, parts: Sequence[State]) -> None:
        self.parts = parts

    def reorder(self, rows: Tensor) -> None:
        """Reorder every model's state."""
        for part in self.parts:
            part.reorder(rows)
