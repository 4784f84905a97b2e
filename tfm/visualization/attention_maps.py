"""What an attention picture shows: weights, and the pieces that they are between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

AttentionKind = Literal["encoder", "decoder", "cross"]

# Every picture says that it comes from here, so that nothing else need ever be overwritten.
GENERATOR = "tfm attend"

# The title of each kind, what attends and what is attended to.
WORDS: dict[AttentionKind, tuple[str, str, str]] = {
    "encoder": ("Encoder self-attention", "source pieces", "source pieces"),
    "decoder": ("Decoder self-attention", "target pieces to predict", "target pieces so far"),
    "cross": ("Cross-attention", "target pieces to predict", "source pieces"),
}


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Attention of one kind in all its L layers and h heads, for one sentence.

    Attributes:
        kind: Which attention of the model.
        queries: The piece of each row, which attends; in the decoder, the one to predict.
        keys: The piece of each column, which is attended to.
        weights: [L, h, queries, keys], each row summing to 1.
    """

    kind: AttentionKind
    queries: Sequence[str]
    keys: Sequence[str]
    weights: npt.NDArray[np.float32]
