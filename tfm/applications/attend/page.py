"""An interactive page of attention weights."""

import json
from importlib import resources
from pathlib import Path

from tfm.applications.attend.content import LABELS, SYMBOLS, Content
from tfm.disk.files import write_text


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
    # The data must not contain "</script>", which would end their element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    folder = resources.files("tfm.applications.attend")
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    write_text(path, page.replace("ATTENTION_SCRIPT", script).replace("ATTENTION_DATA", text))
