"""The content of attention pictures: weights, sentences and heads; and a page of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm.disk.files import write_text
from tfm.errors import UsageError
from tfm.features.attention.maps import AttentionKind, AttentionMaps, attention_maps
from tfm.model.build import Model
from tfm.pages import render
from tfm.search.hypotheses import check_finite
from tfm.vocabulary.subword import SPACE_MARK, Vocabulary

# Every picture contains this name, so that no other file is overwritten.
GENERATOR = "tfm attend"

SYMBOLS = f"{SPACE_MARK} begins a word, <s> a sentence; </s> ends the sentence"

# Title, queries and keys of each kind.
LABELS: dict[AttentionKind, tuple[str, str, str]] = {
    "encoder": ("Encoder self-attention", "source pieces", "source pieces"),
    "decoder": ("Decoder self-attention", "target pieces to predict", "target pieces so far"),
    "cross": ("Cross-attention", "target pieces to predict", "source pieces"),
}


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a picture.

    Attributes:
        maps: The weights of each kind of attention that the model has.
        kind: The kind that a figure shows, and a page first.
        layers: Numbers of the layers to draw, counted from 1.
        heads: Numbers of the heads to draw, counted from 1.
        source: The source sentence.
        target: The target sentence.
        languages: The codes of source and target language.
        note: A line about the origin of the weights.
    """

    maps: Mapping[AttentionKind, AttentionMaps]
    kind: AttentionKind
    layers: Sequence[int]
    heads: Sequence[int]
    source: str
    target: str
    languages: tuple[str, str]
    note: str

    @property
    def shown(self) -> AttentionMaps:
        """The weights of the kind to show."""
        return self.maps[self.kind]


def compute_maps(
    model: Model,
    vocabulary: Vocabulary,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    kind: AttentionKind,
    *,
    name: str,
) -> Mapping[AttentionKind, AttentionMaps]:
    """Compute weights as `attention_maps` does; `name` is the model's in messages."""
    maps = attention_maps(model, vocabulary, source_ids, target_ids)
    check_finite(all(math.isfinite(each.weights.sum()) for each in maps.values()))
    if kind not in maps:
        raise UsageError(f"{name} is recurrent and has no {kind} self-attention: use --kind cross")
    return maps


def select(name: str, number: int | None, count: int, kind: AttentionKind) -> Sequence[int]:
    """Return the numbers of the layers or heads to draw, counted from 1; None selects all."""
    if number is not None and not 1 <= number <= count:
        title = LABELS[kind][0].lower()
        raise UsageError(f"--{name} {number}: {title} has {name}s 1 to {count}")
    return [*range(1, count + 1)] if number is None else [number]


def write_page(path: Path, content: Content) -> None:
    """Write an HTML file on which readers choose the kind of attention, the layer and the heads.

    It opens with the kind, the last of the layers, and the heads of the content.
    """
    source_language, target_language = content.languages
    data = {
        "source": {"text": content.source, "language": source_language},
        "target": {"text": content.target, "language": target_language},
        "note": content.note,
        "symbols": SYMBOLS,
        "start": {"kind": content.kind, "layer": content.layers[-1], "heads": content.heads},
        "maps": [
            {
                "kind": each.kind,
                **dict(zip(("title", "query_name", "key_name"), LABELS[each.kind], strict=True)),
                "queries": list(each.queries),
                "keys": list(each.keys),
                "weights": each.thousandths(),
            }
            for each in content.maps.values()
        ],
    }
    write_text(path, render("applications/attend/page.html", title="Attention", data=data))
