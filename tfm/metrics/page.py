"""A page of translations: sources, references and outputs of several systems side by side."""

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

from tfm.disk.files import write_text
from tfm.table import Table
from tfm.text.languages import name_of
from tfm.text.units import units

MAX_LINES = 1000  # of a page; more would be slow to open


class PageLine(NamedTuple):
    """A line of a page, with system, translation and scores by name (None if unknown) of each text.

    Readers sort lines by the scores of the first text.
    """

    label: str
    source: str | None
    reference: str | None
    texts: Sequence[tuple[str, str, Mapping[str, float | None]]]


def write_page(
    path: Path,
    title: str,
    note: str,
    lines: Sequence[PageLine],
    *,
    table: Table | None = None,
    language: str = "",
) -> None:
    """Write one HTML file that needs no other: a table, and lines that readers can sort.

    What differs from the reference is marked. The language is that of the translations.
    """
    keys = [{**line.texts[0][2], "length": len(line.source or line.texts[0][1])} for line in lines]
    names = [name for name in keys[0] if any(each[name] is not None for each in keys)]
    options = "".join(f"<option>{escape(name)}" for name in names)
    items = []
    for line, of_line in zip(lines, keys, strict=True):
        cells = [_cell("Source", line.source), _cell("Reference", line.reference, language)]
        cells += [_cell(n, text, language, its, line.reference) for n, text, its in line.texts]
        data = escape(json.dumps(of_line))
        items.append(
            f'<li data-keys="{data}"><h2>{escape(line.label)}</h2><div>{"".join(cells)}</div>'
        )
    given = [table.columns, *table.rows] if table else [[]]
    head, *rows = [[escape(cell) for cell in row] for row in given]
    shown = "".join(f'<th scope="col">{cell}' for cell in head)
    shown += "".join(f'<tr><th scope="row">{"<td>".join(row)}' for row in rows)
    page = (resources.files("tfm.metrics") / "page.html").read_text(encoding="utf-8")
    write_text(
        path,
        Template(page).substitute(
            title=escape(title),
            note=escape(note),
            options=options,
            table=f'<table tabindex="0"><tr>{shown}</table>' if table else "",
            lines="\n".join(items),
        ),
    )


def _cell(
    name: str,
    text: str | None,
    language: str = "",
    scores: Mapping[str, float | None] = {},
    reference: str | None = None,
) -> str:
    """Return a text as HTML, isolated from the others' direction; nothing without a text."""
    if text is None:
        return ""
    shown = escape(text) if reference is None else _marked(text, reference)
    figures = " · ".join(f"{n} {value:.4g}" for n, value in scores.items() if value is not None)
    known = language if name_of(language) != language else ""
    lang = f' lang="{escape(known.replace("_", "-"))}"' if known else ""
    return (
        f"<section><h3><bdi>{escape(name)}</bdi></h3><p class=muted>{escape(figures)}</p>"
        f"<p class=text dir=auto{lang}>{shown}</p></section>"
    )


def _marked(text: str, reference: str) -> str:
    """Return a text as HTML, in which words or characters that the reference lacks are marked."""
    spans = units(text)
    ours = [text[slice(*span)] for span in spans]
    theirs = [reference[slice(*span)] for span in units(reference)]
    parts, end = [], 0
    for tag, _, _, first, last in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if first < last:
            start, before = spans[first][0], end
            end = spans[last - 1][1]
            parts.append(escape(text[before:start]))
            part = escape(text[start:end])
            parts.append(part if tag == "equal" else f"<mark>{part}</mark>")
    return "".join(parts) + escape(text[end:])
