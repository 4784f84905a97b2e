"""Search among the target pieces of a shortlist: a small vocabulary for each batch.

The vocabulary of a batch is the union of its sentences' shortlists. Each sentence can only use its
own pieces, and its probabilities are normalized over them: so its outputs do not depend on the rest
of the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from tfm.config import SearchConfig
from tfm.dataset.shortlist import Shortlist
from tfm.model.build import Model
from tfm.model.cache import DecodingState
from tfm.search import search
from tfm.search.active import Prefixes
from tfm.search.constraints import Constraints
from tfm.search.hypotheses import Hypothesis
from tfm.search.model import Ensemble, Projection, SearchableModel
from tfm.search.spelling import Array, OpenEnd, renumbered
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK

if TYPE_CHECKING:
    from tfm.search.phrases import RequiredPhrases

# Sizes of vocabularies are multiples of this: libraries prepare for each size.
_SIZE_STEP = 128
_ABSENT = -1


def search_shortlist(
    models: Sequence[Model],
    shortlist: Shortlist,
    source: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    *,
    line_numbers: Sequence[int],
    prefixes: Prefixes,
    constraints: Constraints | None = None,
    open_ends: Sequence[OpenEnd] | None = None,
    required: "Sequence[RequiredPhrases] | None" = None,
) -> list[list[Hypothesis]]:
    """Search for outputs of sources [B, S] of [B] lengths, of pieces in a shortlist.

    Other arguments, the result and errors are documented at `search`. Forced tokens and
    those of required phrases may be any pieces.
    """
    open_ends = open_ends or [()] * len(prefixes)
    if config.search == "exact" and len(lengths) > 1:  # which searches each sentence by itself
        return [
            hypotheses
            for row in range(len(lengths))
            for hypotheses in search_shortlist(
                models,
                shortlist,
                source[row : row + 1, : int(lengths[row])],
                lengths[row : row + 1],
                config,
                line_numbers=line_numbers[row : row + 1],
                prefixes=prefixes[row : row + 1],
                constraints=constraints,
                open_ends=open_ends[row : row + 1],
            )
        ]
    vocab_size = len(models[0].output_weight)
    spelling = [
        [token for step in end for token in step.tokens[step.ends <= len(end)]] for end in open_ends
    ]
    phrases = [list(each.tokens) for each in required or ()] or [list[int]()] * len(prefixes)
    needed = [list(chain(*each)) for each in zip(prefixes, spelling, phrases, strict=True)]
    pieces, allowed = _vocabulary(shortlist, source, needed, vocab_size)
    on_device = torch.from_numpy(pieces).to(source.device)
    excluded = torch.from_numpy(~allowed).to(source.device)
    restricted = [ShortlistedModel(model, on_device, excluded) for model in models]
    short_ids = np.full(vocab_size, _ABSENT)
    short_ids[pieces] = np.where(pieces == PAD, PAD, np.arange(len(pieces)))
    nbest_lists = search(
        restricted[0] if len(restricted) == 1 else Ensemble(restricted),
        source,
        lengths,
        config,
        line_numbers=line_numbers,
        prefixes=[short_ids[list(prefix)].tolist() for prefix in prefixes],
        constraints=constraints and ShortlistConstraints(constraints, pieces, short_ids),
        open_ends=[renumbered(end, short_ids) for end in open_ends],
        required=required and [each.renumbered(pieces, short_ids) for each in required],
    )
    return [[_with_ids(each, pieces) for each in n_best] for n_best in nbest_lists]


class ShortlistConstraints(Constraints):
    """Constraints on the ids of a small vocabulary.

    Args:
        constraints: The constraints on ids of the model's vocabulary.
        pieces: [V'] the ids of the pieces in the model's vocabulary.
        short_ids: [V] the ids of the model's pieces in the small vocabulary, or `_ABSENT`.
    """

    def __init__(self, constraints: Constraints, pieces: Array, short_ids: Array) -> None:
        self._constraints, self._pieces, self._short_ids = constraints, pieces, short_ids
        never = short_ids[list(constraints.never)]
        self.never = tuple(never[never != _ABSENT].tolist())

    @override
    def ruled_out(self, tokens: Array) -> tuple[Array, Array]:
        rows, ruled_out = self._constraints.ruled_out(self._pieces[tokens])
        short = self._short_ids[ruled_out]
        return rows[short != _ABSENT], short[short != _ABSENT]


class ShortlistedModel(SearchableModel):
    """A model with a vocabulary of V' pieces; special tokens keep the ids of the model.

    Args:
        model: A model in evaluation mode.
        pieces: [V'] the ids of the pieces in the model's vocabulary.
        excluded: [B, V'] whether each sentence of the batch must not use them.
    """

    def __init__(self, model: Model, pieces: Tensor, excluded: Tensor) -> None:
        self.max_positions = model.max_positions
        self._model = model
        self._project = model.projection(pieces)
        self._pieces, self._excluded = pieces, excluded

    @override
    def start(self, source: Tensor, lengths: Tensor) -> "ShortlistedState":
        return ShortlistedState(self._model.start(source, lengths), self._excluded)

    @override
    def step_rows(self, tokens: Tensor, state: "ShortlistedState", rows: Tensor) -> Projection:
        hidden = self._model.step_hidden(self._pieces[tokens], state.state, rows)
        excluded, sentences = state.excluded, rows // tokens.size(1)

        def project(part: slice) -> Tensor:
            logits = self._project(hidden[part])
            return logits.masked_fill_(excluded.index_select(0, sentences[part]), -math.inf)

        return project


class ShortlistedState(DecodingState):
    """The state of a model, and the pieces that each of its sentences must not use [B, V']."""

    def __init__(self, state: Any, excluded: Tensor) -> None:
        self.state = state
        self.excluded = excluded
        self._num_hypotheses = 1

    @override
    def reorder(self, rows: Tensor) -> None:
        if len(rows) < len(self.excluded):
            self.excluded = self.excluded.index_select(0, rows[:, 0] // self._num_hypotheses)
        self._num_hypotheses = rows.size(1)
        self.state.reorder(rows)


def _vocabulary(
    shortlist: Shortlist, source: Tensor, needed: Prefixes, vocab_size: int
) -> tuple[Array, Array]:
    """Return the ids [V'] of a batch's pieces, and which of them its sentences may use [B, V'].

    Special tokens come first, so that their ids stay; PAD fills the end.
    """
    allowed = shortlist.allowed(source.cpu().numpy(), vocab_size)
    allowed[:, [PAD, BOS, EOS, UNK]] = True
    for row, tokens in zip(allowed, needed, strict=True):
        row[list(tokens)] = True
    pieces = np.flatnonzero(allowed.any(axis=0))
    num_spare = -len(pieces) % _SIZE_STEP
    allowed = np.pad(allowed[:, pieces], ((0, 0), (0, num_spare)))
    return np.pad(pieces, (0, num_spare), constant_values=PAD), allowed


def _with_ids(hypothesis: Hypothesis, pieces: Array) -> Hypothesis:
    """Replace token ids of a batch's vocabulary by the model's token ids."""
    tokens = tuple(pieces[list(hypothesis.tokens)].tolist())
    return replace(hypothesis, tokens=tokens, vocabulary="shortlist")
