"""Attention weights with the pieces that they connect, and an interactive page of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tfm.storage.files import write_text

AttentionKind = Literal["encoder", "decoder", "cross"]

# Every picture contains this name, so that no other file is overwritten.
GENERATOR = "tfm attend"

SPACE_MARK = "▁"
SYMBOLS = f"{SPACE_MARK} begins a word, <s> a sentence; </s> ends the sentence"

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

    def by_words(self) -> "AttentionMaps":
        """Return the weights between words instead of pieces.

        They are summed over the pieces of a key, and averaged over those of a query. Text without
        spaces keeps its pieces.
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


def _word_starts(pieces: Sequence[str]) -> list[int]:
    """Return the index of the first piece of each word, and of the last piece, which is EOS."""
    inner = range(1, len(pieces) - 1)
    starts = [index for index in inner if pieces[index].startswith(SPACE_MARK)]
    return [0, *(starts or inner), *range(max(1, len(pieces) - 1), len(pieces))]


def _words(pieces: Sequence[str], starts: Sequence[int]) -> list[str]:
    ends = [*starts[1:], len(pieces)]
    words = ("".join(pieces[start:end]) for start, end in zip(starts, ends, strict=True))
    return [word.replace(SPACE_MARK, " ").strip() or word for word in words]


def write_page(
    path: Path,
    maps: Sequence[AttentionMaps],
    *,
    source: str,
    target: str,
    languages: tuple[str, str],
    note: str,
    kind: AttentionKind,
    layer: int,
    heads: Sequence[int],
) -> None:
    """Write a page on which the kind of attention, layer and heads can be chosen.

    It starts with `kind`, `layer` and `heads`, counted from 1, and shows `note`, a line about the
    origin of the weights. `languages` are the codes of source and target.
    """
    data = {
        "source": {"text": source, "language": languages[0]},
        "target": {"text": target, "language": languages[1]},
        "note": note,
        "symbols": SYMBOLS,
        "start": {"kind": kind, "layer": layer, "heads": heads},
        "maps": [_record(each) for each in maps],
    }
    # The data must not contain "</script>", which would end their element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    folder = resources.files("tfm.visualization")
    page = (folder / "attention_page.html").read_text(encoding="utf-8")
    script = (folder / "attention_page.js").read_text(encoding="utf-8")
    write_text(path, page.replace("ATTENTION_SCRIPT", script).replace("ATTENTION_DATA", text))


def _record(maps: AttentionMaps) -> dict[str, Any]:
    """Return the maps as the page's script reads them, with weights in thousandths."""
    return {
        "kind": maps.kind,
        **dict(zip(("title", "query_name", "key_name"), LABELS[maps.kind], strict=True)),
        "queries": list(maps.queries),
        "keys": list(maps.keys),
        "weights": maps.thousandths(),
    }
