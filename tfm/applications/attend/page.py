"""An interactive page of attention weights."""

from pathlib import Path

from tfm.applications.attend.content import LABELS, SYMBOLS, Content
from tfm.disk.files import write_text
from tfm.pages import render


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
