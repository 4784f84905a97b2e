"""A page of translations: sources, references and outputs of several systems side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from unicodedata import normalize

from tfm.disk.files import write_text
from tfm.pages import render
from tfm.reporting import say
from tfm.table import Table
from tfm.text.languages import name_of

MAX_LINES = 1000  # of a page; more would be slow to open


# System, translation, and scores by name (None if unknown).
PageText = tuple[str, str, Mapping[str, float | None]]


@dataclass(frozen=True)
class PageLine:
    """A line of a page; readers sort lines by the scores of the first text."""

    label: str
    source: str | None
    reference: str | None
    texts: Sequence[PageText]


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

    Words that are not in the reference are marked. `language` is the language of the translations.
    """
    keys = [{**line.texts[0][2], "length": len(line.source or line.texts[0][1])} for line in lines]
    names = [name for name in keys[0] if any(each[name] is not None for each in keys)]
    values = {"note": note, "rows": table, "names": names, "lines": lines, "keys": keys}
    write_template("metrics/page.html", path, title, language, **values)


def write_template(template: str, path: Path, title: str, language: str, **values: object) -> None:
    """Write a page by a template that shows lines with `listed` of lines.html."""
    lang = language.replace("_", "-") if name_of(language) != language else ""
    tools = {"lang": lang, "figures": _figures, "marked": _marked}
    write_text(path, render(template, title=title, **tools, **values))
    say(f"page: {path}")


def _figures(scores: Mapping[str, float | None]) -> str:
    return " · ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)


def _marked(text: str, reference: str | None) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether the reference lacks their words or characters."""
    if reference is None:
        return [(text, False)]
    from tfm.text.units import units  # not needed to start a command

    spans = units(text)
    ours = [normalize("NFC", text[slice(*span)]) for span in spans]
    theirs = [normalize("NFC", reference[slice(*span)]) for span in units(reference)]
    parts, end = [], 0
    for tag, _, _, first, last in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if first < last:
            start, before = spans[first][0], end
            end = spans[last - 1][1]
            parts += [(text[before:start], False), (text[start:end], tag != "equal")]
    return [*parts, (text[end:], False)]
