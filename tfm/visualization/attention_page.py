"""Attention as a page to explore: one HTML file that needs nothing else."""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tfm.storage.files import write_text
from tfm.visualization.attention_maps import WORDS, AttentionKind, AttentionMaps


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
    """Write a page on which to choose kind, layer and heads, and to point at pieces.

    Args:
        path: The HTML file.
        maps: The kinds of attention to choose from.
        source: The source sentence.
        target: The target sentence.
        languages: Codes of their languages.
        note: Where this comes from, in a line.
        kind: Which attention to show at first.
        layer: Which layer to show at first, counted from 1.
        heads: Which heads to show at first, counted from 1.
    """
    data = {
        "source": {"text": source, "language": languages[0]},
        "target": {"text": target, "language": languages[1]},
        "note": note,
        "start": {"kind": kind, "layer": layer, "heads": heads},
        "maps": [_record(each) for each in maps],
    }
    # The data stand in a script element, which nothing in them may end.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    folder = resources.files("tfm.visualization")
    page = (folder / "attention_page.html").read_text(encoding="utf-8")
    script = (folder / "attention_page.js").read_text(encoding="utf-8")
    write_text(path, page.replace("ATTENTION_SCRIPT", script).replace("ATTENTION_DATA", text))


def _record(maps: AttentionMaps) -> dict[str, Any]:
    """What the page's script reads; weights are in thousandths."""
    title, query_name, key_name = WORDS[maps.kind]
    return {
        "kind": maps.kind,
        "title": title,
        "query_name": query_name,
        "key_name": key_name,
        "queries": list(maps.queries),
        "keys": list(maps.keys),
        "weights": np.rint(1000 * maps.weights).astype(int).tolist(),
    }
