"""The interface between search and models, and ensembles of models."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from tfm.model.cache import DecodingState

# Projects a slice of R hypotheses to their logits [R', V].
Projection: TypeAlias = Callable[[slice], Tensor]


class SearchableModel(Protocol):
    """A model that can encode and step."""

    max_positions: int | None  # the maximum number of tokens of a source or output, if limited

    def start(self, source: Tensor, lengths: Tensor) -> DecodingState:
        """Encode sources [B, S] of [B] lengths; return the state of one hypothesis for each."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode the position after tokens [B, K] to logits [B, K, V], and update the state.

        V may exceed the vocabulary: the logits of further tokens are -inf. While sentences have one
        hypothesis, tokens [B, T] are its next T: their positions are decoded at once.
        """
        rows = torch.arange(tokens.numel(), device=tokens.device)
        return self.step_rows(tokens, state, rows)(slice(None)).view(*tokens.shape, -1)

    def step_rows(self, tokens: Tensor, state: Any, rows: Tensor) -> Projection:
        """Decode as `step` does; return the projection of hypotheses to logits.

        `rows` are [R] indices among the B·K hypotheses; the others will not be continued.
        """


class Ensemble(SearchableModel):
    """At least one model; several have one vocabulary, and their probabilities are averaged."""

    def __init__(self, models: Sequence[SearchableModel]) -> None:
        self._models = models
        limits = [model.max_positions for model in models if model.max_positions is not None]
        self.max_positions = min(limits, default=None)

    @override
    def start(self, source: Tensor, lengths: Tensor) -> "EnsembleState":
        return EnsembleState([model.start(source, lengths) for model in self._models])

    @override
    def step_rows(self, tokens: Tensor, state: "EnsembleState", rows: Tensor) -> Projection:
        projections = [
            model.step_rows(tokens, model_state, rows)
            for model, model_state in zip(self._models, state.states, strict=True)
        ]

        def project(part: slice) -> Tensor:
            log_probs = [each(part).float().log_softmax(dim=-1) for each in projections]
            # A model may pad its vocabulary.
            vocab_size = min(each.size(-1) for each in log_probs)
            return mean_probability(torch.stack([each[:, :vocab_size] for each in log_probs]))

        return project


class EnsembleState(DecodingState):
    """The decoding states of the models of an ensemble."""

    def __init__(self, states: Sequence[DecodingState]) -> None:
        self.states = states

    @override
    def reorder(self, rows: Tensor) -> None:
        for state in self.states:
            state.reorder(rows)


def mean_probability(log_probs: Tensor) -> Tensor:
    """Return the logarithm […] of the mean of N probabilities with logarithms [N, …]."""
    return log_probs.logsumexp(dim=0) - math.log(len(log_probs))
