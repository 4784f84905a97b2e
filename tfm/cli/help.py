"""Help that lists flags and commands by panel, and truncates none on a narrow terminal."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import typer.core

_Row = tuple[str, str]  # name, help


class Command(typer.core.TyperCommand):
    """A command that lists its arguments and flags by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of arguments and flags."""
        rows = []
        for parameter in self.get_params(ctx):
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if row := parameter.get_help_record(ctx):
                rows.append((getattr(parameter, "rich_help_panel", None) or title, row))
        _write_panels(rows, formatter)


class Group(typer.core.TyperGroup):
    """A group that lists its commands by panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of commands."""
        rows = []
        for name, command in self.commands.items():
            summary = (command.help or "").split("\n\n")[0]
            rows.append((getattr(command, "rich_help_panel", None) or "Commands", (name, summary)))
        _write_panels(sorted(rows, key=lambda row: row[0] != "Commands"), formatter)


def _write_panels(rows: Iterable[tuple[str, _Row]], formatter: Any) -> None:
    panels = defaultdict(list)
    for title, row in rows:
        panels[title].append(row)
    for title, panel in panels.items():
        with formatter.section(title):
            formatter.write_dl(panel)
