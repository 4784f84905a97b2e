"""The placeholders of other programs, from a table that lies beside this module.

Placeholders whose `use` is "always" change at most a few of 100,000 lines of ordinary text. Others
are copied if users name one of their programs. In a pattern, the group `open` is a brace, and the
placeholder ends with the brace that closes it.
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple


class Placeholder(NamedTuple):
    """A row of the table; its pattern is a regular expression."""

    name: str
    use: str
    programs: str
    example: str
    pattern: str

    def is_of(self, programs: frozenset[str]) -> bool:
        """Return whether any of these programs, named as by `programs`, has the placeholder."""
        return not programs.isdisjoint(self.programs.lower().split(", "))


@cache
def placeholders() -> tuple[Placeholder, ...]:
    """Return the rows of the table; if several match at a place, the first one counts."""
    text = (resources.files(__package__) / "placeholders.tsv").read_text(encoding="utf-8")
    rows = csv.reader(text.splitlines()[1:], delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(Placeholder(*row) for row in rows)


def programs() -> list[str]:
    """Return the names of all programs in the table, in lower case."""
    return sorted({name for row in placeholders() for name in row.programs.lower().split(", ")})
