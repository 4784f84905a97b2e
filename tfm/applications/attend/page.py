"""An interactive page of attention weights."""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tfm.data.subword import SPACE_MARK
from tfm.features.attention.maps import AttentionKind, AttentionMaps
from tfm.storage.files import write_text

# Every picture contains this name, so that no other file is overwritten.
GENERATOR = "tfm attend"

SYMBOLS = f"{SPACE_MARK} begins a word, <s> a sentence; </s> ends the sentence"

# Title, queries and keys of each kind.
LABELS: dict[AttentionKind, tuple[str, str, str]] = {
    "encoder": ("Encoder self-attention", "source pieces", "source pieces"),
    "decoder": ("Decoder self-attention", "target pieces to predict", "target pieces so far"),
    "cross": ("Cross-attention", "target pieces to predict", "source pieces"),
}


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
    """Write an HTML file on which readers choose the kind of attention, the layer and the heads.

    It opens with `kind`, `layer` and `heads`, counted from 1. Below the maps' sentences is `note`,
    a line about the origin of the weights. `languages` are the codes of source and target.
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
    folder = resources.files("tfm.applications.attend")
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
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
