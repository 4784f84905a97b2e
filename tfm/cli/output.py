"""Results of commands, as tables, lines or JSON."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tfm.reporting import Result, say
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.applications.check.suite import CheckResult
    from tfm.applications.doctor.checks import Finding
    from tfm.text.corpus.recipe import Recipe


def print_result(result: Result, *, as_json: bool = False) -> None:
    """Print the result of a command: as one JSON object, or its lines and tables."""
    if as_json:
        text = json.dumps(result.record(), ensure_ascii=False)
        print(text.encode(errors="backslashreplace").decode())  # noqa: T201 - names of any bytes
        return
    for message in result.summary():
        say(message)
    from rich.console import Console  # here, because it would delay tfm --help

    for line in result.lines(Console().width if sys.stdout.isatty() else None):
        if isinstance(line, str):
            print(line)  # noqa: T201
        elif isinstance(line, Table):
            line.print()
        else:
            Console(highlight=False).print(line, soft_wrap=True)


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


def print_findings(findings: "Iterable[Finding]", *, as_json: bool) -> "list[Finding]":
    """Print findings as soon as they are there, or all as one JSON object; return them."""
    found = []
    for each in findings:
        found.append(each)
        if not as_json:
            Table([(f"{each.level:<8} {each.check:<9}", each.message)]).print()
            if each.remedy:
                print(f"{'':<19} → {each.remedy}", flush=True)  # noqa: T201
    if as_json:
        print(json.dumps({"findings": [asdict(each) for each in found]}))  # noqa: T201
    return found


def print_check(result: "CheckResult", *, as_json: bool) -> None:
    """Print the rows of a check as a table, with what failed, or all as one JSON object."""
    if as_json:
        print(json.dumps(asdict(result), ensure_ascii=False))  # noqa: T201
        return
    from tfm.applications.check.reports import table

    table(result).print()
    for row in result.rows:
        if row.failures or row.skipped:
            say(f"check: {row.name} ({row.about}): {', '.join(row.failures) or row.skipped}")
    num_failed = sum(bool(row.failures) for row in result.rows)
    protected = "with" if result.protects else "without"
    say(f"check: {num_failed} of {len(result.rows)} rows failed, {protected} protected text")
