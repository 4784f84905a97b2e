"""Tables of a report, and that of its training texts: shares, counts and losses."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
    "text",
    "share asked",
    "share seen",
    "pairs",
    "read",
    "dropped",
    "duplicates",
    "also held out",
    "first loss",
    "newest loss",
)


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text, the first of them with the names of columns, as HTML."""
    kinds = ["th", *["td"] * (len(rows) - 1)]
    lines = [
        "<tr>{}</tr>".format("".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row))
        for kind, row in zip(kinds, rows, strict=True)
    ]
    return "<table>\n{}\n</table>\n".format("\n".join(lines))


def texts_table(
    texts: Sequence[Mapping[str, Any]],
    windows: Sequence[Sequence[int]],
    losses: Mapping[str, Sequence[tuple[int, float]]],
) -> str:
    """Return a row for each training text as HTML.

    Args:
        texts: The records of the texts.
        windows: The number of pairs of each text in some steps of training.
        losses: {name of a text: (step, loss) of each validation}, in the order of the texts.
    """
    sizes = [text["kept"] if text["weight"] is None else text["weight"] for text in texts]
    seen = [sum(counts) for counts in zip(*windows, strict=True)]
    rows = []
    for number, (text, (name, points)) in enumerate(zip(texts, losses.items(), strict=True)):
        dropped = text["dropped"]
        cells = [
            name,
            f"{sizes[number] / sum(sizes):.2%}",
            f"{seen[number] / sum(seen):.2%}" if seen else "",
            *(f"{text[key]:,}" for key in ("kept", "read")),
            f"{sum(dropped.values()) - dropped.get('duplicate', 0):,}",
            f"{dropped.get('duplicate', 0):,}",
            f"{text['in_held_out']:,}",
            *(f"{loss:.3f}" for _, loss in [*points[:1], *points[-1:]]),
        ]
        rows.append(cells)
    return render_table([_COLUMNS, *rows])
