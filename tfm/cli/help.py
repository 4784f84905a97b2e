"""Help that lists flags and commands by panel, and truncates none on a narrow terminal."""

import copy
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import typer
import typer.core

from tfm.errors import UsageError

_Row = tuple[str, str]  # name, help
# What typer writes for the type of a value, and the word for it.
_METAVARS = {
    "int": "N",
    "float": "X",
    "path": "PATH",
    "str": "TEXT",
    "list[str]": "TEXT",
    "list[Path]": "PATH",
}
_TYPE = re.compile(f"<({'|'.join(map(re.escape, _METAVARS))})>")
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


def help_row(parameter: Any, context: Any) -> _Row | None:
    """Return name and help of an argument or flag, without the names of Python's types."""
    if (row := parameter.get_help_record(context)) is None:
        return None
    name, text = row
    if parameter.param_type_name == "argument":
        return parameter.metavar, text.removesuffix("[required]").rstrip()
    return _TYPE.sub(lambda match: _METAVARS[match[1]], name), text


class Command(typer.core.TyperCommand):
    """A command that lists its arguments and flags by panel, hidden ones with --help-all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return typer's rest of the arguments; raise UsageError if there is one."""
        ctx.allow_extra_args = True
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            error.ctx = getattr(error, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise
        if rest and not ctx.resilient_parsing:
            raise UsageError(f"{ctx.info_name} {self.explain_rest(ctx, rest)}")
        return rest

    def explain_rest(self, _: Any, rest: list[str]) -> str:
        """Return what the command takes instead of the rest of its arguments."""
        taken = [str(p.metavar) for p in self.params if p.param_type_name == "argument"]
        what = f"only {' and '.join(taken)}" if taken else "nothing"
        return f"takes {what} without a flag: leave out {shlex.join(rest)}"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of arguments and flags."""
        parameters: list[Any] = [copy.copy(parameter) for parameter in self.get_params(ctx)]
        is_short = any(each.hidden for each in parameters) and not ctx.meta.get(_SHOW_ALL)
        rows = []
        for parameter in parameters:
            parameter.hidden = parameter.hidden and is_short
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            title = getattr(parameter, "rich_help_panel", None) or title
            if row := help_row(parameter, ctx):
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
