"""Attention weights with the pieces that they connect, as attention pictures show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

AttentionKind = Literal["encoder", "decoder", "cross"]

# Every picture contains this name, so that no other file is overwritten.
GENERATOR = "tfm attend"

SYMBOLS = "▁ begins a word, <s> a sentence; </s> ends the sentence"

# Title, queries and keys of each kind.
LABELS: dict[AttentionKind, tuple[str, str, str]] = {
    "encoder": ("Encoder self-attention", "source pieces", "source pieces"),
    "decoder": ("Decoder self-attention", "target pieces to predict", "target pieces so far"),
    "cross": ("Cross-attention", "target pieces to predict", "source pieces"),
}


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Attention weights of one kind in all L layers and h heads, for one pair of sentences."""

    kind: AttentionKind
    queries: Sequence[str]  # a piece per row; in the decoder, the piece to predict
    keys: Sequence[str]  # a piece per column
    weights: npt.NDArray[np.float32]  # [L, h, queries, keys]; each row sums to 1
