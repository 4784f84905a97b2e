"""Tables of text, for terminals, Markdown and LaTeX; pages draw them by templates/table.html."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

_MIN_TEXT_COLUMNS = 24  # of a last cell beside the others


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of a row is its name.

    Attributes:
        rows: The cells of each row.
        columns: The names of the columns; empty for a list, whose last cells take several lines on
            a narrow terminal.
        is_numeric: Whether cells other than names are aligned to the right.
    """

    rows: Sequence[Sequence[str]]
    columns: Sequence[str] = ()
    is_numeric: bool = False

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], *, is_numeric: bool = False) -> "Table":
        """Return a table of rows that are given as {name of a column: cell}."""
        return cls([[*row.values()] for row in rows], [*rows[0]], is_numeric)

    def print(self, *, stderr: bool = False) -> None:
        """Print the table on standard output or error, with a dim head on a terminal."""
        from rich.console import Console  # would delay tfm --help
        from rich.text import Text

        console = Console(stderr=stderr, highlight=False, soft_wrap=True)
        blocks = self.blocks(console.width if console.file.isatty() else math.inf)
        for line in blocks.pop(0) if self.columns else ():
            console.print(Text(line, "dim"))
        for line in chain.from_iterable(blocks):
            print(line, file=console.file, flush=True)

    def text(self, form: Literal["markdown", "latex", "html"]) -> str:
        """Return the table in Markdown, LaTeX with the rules of booktabs, or HTML."""
        from tabulate import tabulate  # here, because only some commands need it

        kind = {"markdown": "pipe", "latex": "latex_booktabs", "html": "html"}[form]
        bar = r"\|" if kind == "pipe" else "|"  # other forms are escaped by tabulate
        rows = [[cell.replace("|", bar) for cell in row] for row in self._all()]
        align = ["left", *["right" if self.is_numeric else "left"] * (len(rows[0]) - 1)]
        return str(tabulate(rows, "firstrow", kind, colalign=align, disable_numparse=True))

    def _all(self) -> list[Sequence[str]]:
        return [self.columns, *self.rows] if self.columns else [*self.rows]

    def blocks(self, width: float = math.inf) -> list[list[str]]:
        """Return the lines of the head and of each row, for a terminal of some width.

        No word is broken: names and paths have to be copied. A table with a head that is too wide
        leaves out empty columns, and then has the names of rows on separate lines.
        """
        rows = self._all()
        if max(map(_width, self._padded(rows)), default=0) > width and self.columns:
            used = [column for column in zip(*rows, strict=True) if any(column[1:])]
            rows = [*zip(*used, strict=True)]
        lines = [line.rstrip() for line in self._padded(rows)]
        if max(map(_width, lines), default=0) <= width:
            return [[line] for line in lines]
        heads = self._padded([row[:-1] for row in rows])
        if not self.columns:
            return [*_folded(heads, rows, width)]
        details = self._padded([row[1:] for row in rows])
        if max(map(_width, details)) + 2 > width:
            details = self._padded([row[1:] for row in rows], gap=" ")
        return [[row[0], f"  {detail}".rstrip()] for row, detail in zip(rows, details, strict=True)]

    def _padded(self, rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
        """Return rows of cells as lines, in columns of equal width."""
        widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            spaces = [" " * (room - _width(cell)) for cell, room in zip(row, widths, strict=True)]
            cells = [
                f"{space}{cell}" if self.is_numeric and number else f"{cell}{space}"
                for number, (cell, space) in enumerate(zip(row, spaces, strict=True))
            ]
            lines.append(gap.join(cells))
        return lines


def _folded(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: float
) -> Iterator[list[str]]:
    """Yield the lines of rows with their last cells folded, beside or below the other cells."""
    indent = _width(heads[0]) + 2
    is_below = width - indent < _MIN_TEXT_COLUMNS
    indent = 2 if is_below else indent
    for head, row in zip(heads, rows, strict=True):
        texts = fold(row[-1], width - indent)
        first = "" if is_below else texts.pop(0)
        yield [f"{head}  {first}".rstrip(), *(" " * indent + text for text in texts)]


def fold(text: str, columns: float) -> list[str]:
    """Return a text as lines; a longer word is alone on its line."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and _width(longer) > columns:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _width(text: str) -> int:
    """Return the number of columns of a text on a terminal."""
    from rich.cells import cell_len  # would delay tfm --help

    return cell_len(text)
