"""Attention as a page to explore: one HTML file that needs nothing else."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tfm.storage.files import write_text
from tfm.visualization.attention_maps import AttentionKind, AttentionMaps

_PLACE_OF_SCRIPT, _PLACE_OF_DATA = "ATTENTION_SCRIPT", "ATTENTION_DATA"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One side of what the page is about: plain text and its language's code."""

    text: str
    language: str


@dataclass(frozen=True, kw_only=True)
class View:
    """What the page shows at first.

    Attributes:
        kind: Which attention.
        layer: Which layer, counted from 1.
        heads: Which heads, counted from 1.
    """

    kind: AttentionKind
    layer: int
    heads: Sequence[int]


def write_page(
    path: Path,
    maps: Sequence[AttentionMaps],
    *,
    source: Sentence,
    target: Sentence,
    note: str,
    start: View,
) -> None:
    """Write a page on which to choose kind, layer and heads, and to point at pieces.

    Args:
        path: The HTML file.
        maps: The kinds of attention to choose from.
        source: The source sentence.
        target: The target sentence.
        note: Where this comes from, in a line.
        start: What to show at first.
    """
    data = {
        "source": asdict(source),
        "target": asdict(target),
        "note": note,
        "start": asdict(start),
        "maps": [_record(each) for each in maps],
    }
    # The data stand in a script element, which nothing in them may end.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page, script = (
        (resources.files("tfm.visualization") / f"attention_page.{ending}").read_text(
            encoding="utf-8"
        )
        for ending in ("html", "js")
    )
    write_text(path, page.replace(_PLACE_OF_SCRIPT, script).replace(_PLACE_OF_DATA, text))


def _record(maps: AttentionMaps) -> dict[str, Any]:
    """What the page's script reads; weights are in thousandths."""
    return {
        "kind": maps.kind,
        "title": maps.title,
        "query_name": maps.query_name,
        "key_name": maps.key_name,
        "queries": list(maps.queries),
        "keys": list(maps.keys),
        "weights": np.rint(1000 * maps.weights).astype(int).tolist(),
    }
