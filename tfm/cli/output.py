"""Results of commands, as tables, lines or JSON."""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from tfm.reporting import Result, say
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.text.corpus.recipe import Recipe


Form = Literal["text", "json", "markdown", "latex"]
FORMS: dict[Form, str] = {
    "json": "Print the result as one JSON object.",
    "markdown": "Print the tables in Markdown.",
    "latex": "Print the tables in LaTeX, with booktabs.",
}


def print_result(result: Result, form: Form = "text") -> None:
    """Print the result of a command: as one JSON object, or its lines and tables in a form."""
    if form == "json":
        text = json.dumps(result.record(), ensure_ascii=False)
        print(text.encode(errors="backslashreplace").decode())  # noqa: T201 - names of any bytes
        return
    for message in result.summary():
        say(message)
    from rich.console import Console  # here, because it would delay tfm --help

    for line in result.lines(Console().width if sys.stdout.isatty() else None):
        if isinstance(line, Table):
            line.print() if form == "text" else print(line.text(form))  # noqa: T201
        elif isinstance(line, str):
            print("% " * (form == "latex" and line != "") + line, flush=True)  # noqa: T201
        else:
            Console(highlight=False).print(line, soft_wrap=True)
    for message in result.notes():
        say(message)


def print_recipes(recipes: "Iterable[Recipe]") -> None:
    """Print name, languages, size of the training text and description of each recipe."""
    rows = [
        (each.name, f"{each.source}-{each.target}", _training_size(each), each.description)
        for each in recipes
    ]
    Table(rows).print()


def _training_size(recipe: "Recipe") -> str:
    """Return the number of training pairs, or if it is unknown the size of all text."""
    counts = [getattr(text, "lines", None) for text in recipe.train]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        return f"{sum(known):,} pairs"
    from rich.filesize import decimal

    return "" if recipe.text_size is None else f"{decimal(recipe.text_size)} of text"
