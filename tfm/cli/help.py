"""Help that lists flags and commands by panel, and truncates none on a narrow terminal."""

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import typer
import typer.core

_Row = tuple[str, str]  # name, help
_SHOW_ALL = "tfm.cli.help.show_all"


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        context.meta[_SHOW_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL = typer.Option(
    False,
    "--help-all",
    help="Show every flag and exit.",
    is_eager=True,
    callback=_show_all,
)


class Command(typer.core.TyperCommand):
    """A command that lists its arguments and flags by panel, hidden ones with --help-all."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of arguments and flags."""
        parameters: list[Any] = [copy.copy(parameter) for parameter in self.get_params(ctx)]
        is_short = any(each.hidden for each in parameters) and not ctx.meta.get(_SHOW_ALL)
        rows = []
        for parameter in parameters:
            parameter.hidden = parameter.hidden and is_short
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            title = getattr(parameter, "rich_help_panel", None) or title
            if row := parameter.get_help_record(ctx):
                # Few settings need no sections.
                rows.append((title.partition(" [")[0] if is_short else title, row))
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
