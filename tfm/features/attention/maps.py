"""Attention weights with the pieces that they connect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tfm.model.attention_weights import record_attention
from tfm.model.build import Model
from tfm.vocabulary.subword import BOS, EOS, SPACE_MARK, Vocabulary

AttentionKind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Attention weights of one kind in all L layers and h heads, for one pair of sentences."""

    kind: AttentionKind
    queries: Sequence[str]  # a piece per row; in the decoder, the piece to predict
    keys: Sequence[str]  # a piece per column
    weights: npt.NDArray[np.float32]  # [L, h, queries, keys]; each row sums to 1

    def by_words(self) -> "AttentionMaps":
        """Return the weights between words instead of pieces.

        They are summed over the pieces of a key, and averaged over the pieces of a query. Text
        without spaces keeps its pieces.
        """
        queries, keys = _word_starts(self.queries), _word_starts(self.keys)
        weights = np.add.reduceat(self.weights, keys, axis=-1)
        sizes = np.diff([*queries, len(self.queries)])
        weights = np.add.reduceat(weights, queries, axis=-2) / sizes[:, None]
        return AttentionMaps(
            kind=self.kind,
            queries=_words(self.queries, queries),
            keys=_words(self.keys, keys),
            weights=weights,
        )

    def thousandths(self) -> list[Any]:
        """Return the weights as nested lists of integers, as pages read them."""
        rounded: list[Any] = np.rint(1000 * self.weights).astype(int).tolist()
        return rounded


def attention_maps(
    model: Model, vocabulary: Vocabulary, source_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[AttentionKind, AttentionMaps]:
    """Compute, on the model's device, the weights of each kind of attention that the model has.

    Args:
        model: The model.
        vocabulary: Its vocabulary.
        source_ids: Token ids of the sentence, without EOS.
        target_ids: Token ids of the translation, without EOS.
    """
    device = model.output_weight.device
    source = torch.tensor([[*source_ids, EOS]], device=device)
    lengths = torch.tensor([source.size(1)], device=device)
    target_input = torch.tensor([[BOS, *target_ids]], device=device)
    recorded = record_attention(model, source, lengths, target_input)
    sources = vocabulary.source.pieces([*source_ids, EOS])
    target_inputs = vocabulary.target.pieces([BOS, *target_ids])
    predictions = vocabulary.target.pieces([*target_ids, EOS])
    kinds: dict[AttentionKind, tuple[Tensor | None, list[str], list[str]]] = {
        "encoder": (recorded.encoder, sources, sources),
        "decoder": (recorded.decoder, predictions, target_inputs),
        "cross": (recorded.cross, predictions, sources),
    }
    return {
        kind: AttentionMaps(
            kind=kind, queries=queries, keys=keys, weights=weights[:, 0].cpu().numpy()
        )
        for kind, (weights, queries, keys) in kinds.items()
        if weights is not None
    }


def _word_starts(pieces: Sequence[str]) -> list[int]:
    """Return the index of the first piece of each word, and of EOS, the last piece."""
    inner = range(1, len(pieces) - 1)
    starts = [index for index in inner if pieces[index].startswith(SPACE_MARK)]
    return [0, *(starts or inner), *range(max(1, len(pieces) - 1), len(pieces))]


def _words(pieces: Sequence[str], starts: Sequence[int]) -> list[str]:
    ends = [*starts[1:], len(pieces)]
    words = ("".join(pieces[start:end]) for start, end in zip(starts, ends, strict=True))
    return [word.replace(SPACE_MARK, " ").strip() or word for word in words]
