"""The typer app: its help by panel, and advice for unknown flags, commands and wrong values."""

import copy
import errno
import re
import shlex
import typing
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import typer
import typer.core

from tfm import __version__
from tfm.config.suggestions import suggest, words_of_toolkits
from tfm.config.values import expected_value, shown
from tfm.errors import UsageError, explain_os_error

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
_CHOICES = re.compile(r"(--[\w-]+) <([^<>]{50,})>")
_SHOW_ALL = "tfm.cli.app.show_all"
_UNBROKEN = "\u2011"  # a hyphen after which no line ends


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
    if many := _CHOICES.fullmatch(name):  # they would not fit beside the text
        return f"{many[1]} NAME", f"One of {', '.join(many[2].split('|'))}. {text}"
    return _TYPE.sub(lambda match: _METAVARS[match[1]], name), text


class _Formatter(typer.Context.formatter_class):  # type: ignore[misc,valid-type]
    """Writes help whose lines end between words, not after the hyphens of flags."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _UNBROKEN))

    def write_dl(self, rows: Iterable[_Row], *args: Any, **keywords: Any) -> None:
        kept = [(name, text.replace("-", _UNBROKEN)) for name, text in rows]
        super().write_dl(kept, *args, **keywords)

    def getvalue(self) -> str:
        return str(super().getvalue()).replace(_UNBROKEN, "-")


class _Context(typer.Context):
    formatter_class = _Formatter


class Command(typer.core.TyperCommand):
    """A command that lists its arguments and flags by panel, hidden flags with --help-all."""

    context_class = _Context

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return typer's rest of the arguments; raise UsageError if there is one."""
        ctx.allow_extra_args = True
        try:
            if not ctx.resilient_parsing:
                self._check_given(ctx, args)
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            error.ctx = getattr(error, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise
        if rest and not ctx.resilient_parsing:
            raise UsageError(f"{ctx.info_name} {self.explain_rest(ctx, rest)}")
        return rest

    def _check_given(self, ctx: Any, args: list[str]) -> None:
        """Refuse what typer accepts: a flag as a value, and the last of several values."""
        values, _, given = self.make_parser(ctx).parse_args([*args])
        names = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        for flag, count in Counter(given).items():
            if flag.param_type_name != "option" or flag.is_eager:
                continue
            taken = _strings(values.get(flag.name))
            if swallowed := [word for word in taken if word.startswith("--") and word in names]:
                raise UsageError(f"{flag.opts[0]} needs {_taken(flag)}, but {swallowed[0]} follows")
            both = [name for name in (*flag.opts, *flag.secondary_opts) if name in args]
            if len(both) > 1:
                raise UsageError(f"{' and '.join(both)} exclude each other: give one")
            if count > 1 and not flag.multiple:
                raise UsageError(f"{flag.opts[0]} is given {count} times: give it once")

    def explain_rest(self, _: Any, rest: list[str]) -> str:
        """Return what the command takes instead of the rest of its arguments."""
        taken = [str(p.metavar) for p in self.params if p.param_type_name == "argument"]
        what = f"only {' and '.join(taken)}" if taken else "nothing"
        advice = "put it in quotes" if "SENTENCE" in taken else f"leave out {shlex.join(rest)}"
        return f"takes {what} without a flag: {advice}"

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


def _taken(flag: Any, other: str = "a value") -> str:
    """Return what a flag takes: the name of its value, or of several values."""
    names = (flag.metavar or other).split() if flag.nargs > 1 else [flag.metavar or other]
    return names[0] if len(names) == 1 else f"{len(names)} words, {' and '.join(names)}"


def _strings(value: Any) -> list[str]:
    """Return the strings of a value, of several, or of several for each time a flag is given."""
    if isinstance(value, list | tuple):
        return [text for each in value for text in _strings(each)]
    return [value] if isinstance(value, str) else []


class Commands(typer.core.TyperGroup):
    """A group that lists its commands by panel and suggests one for an unknown name."""

    context_class = _Context

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return typer's result for the command; raise UsageError if there is none."""
        if args[0] == "help":
            words = " ".join([ctx.command_path, *args[1:]])
            raise UsageError(f"no such command help: see {words} --help")
        if self.get_command(ctx, args[0]) is None:
            for words, reason in words_of_toolkits("needless_commands").items():
                if args[0] in words.split():
                    raise UsageError(f"no such command {args[0]}: {reason}")
            known = self.list_commands(ctx)
            found = suggest(args[0], known, "commands")
            advice = _advice(ctx, [f"{ctx.command_path} {name}" for name in found])
            raise UsageError(f"no such command {args[0]}{advice}")
        return super().resolve_command(ctx, args)

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


def explain_mistake(error: typer.TyperException) -> str:
    """Return typer's message about a command line as one line, in the words of the help."""
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is not None and name is not None and hasattr(error, "possibilities"):
        return _explain_unknown_option(name, context)
    message = " ".join(error.message.split()).removesuffix(".")
    if context is None:
        return message
    parameters = context.command.params
    known = [each for each in parameters if name in (*each.opts, *each.secondary_opts)]
    parameter = next(iter(known), getattr(error, "param", None))
    if parameter is not None:
        message = _explain_value(parameter, name or parameter.opts[0], message, error, context)
    return f"{message} (see {context.command_path} --help)"


def _explain_value(
    parameter: Any, name: str, message: str, error: Exception, context: typer.Context
) -> str:
    """Return a message with the value of an argument or flag and the values that it may have."""
    if message.endswith("is not readable"):
        reason = explain_os_error(PermissionError(errno.EACCES, "Permission denied"))
        return f"{message.removeprefix('path ')}: {reason}"
    if parameter.param_type_name == "argument":
        return f"{context.info_name} needs {parameter.metavar}: {parameter.help}".removesuffix(".")
    if getattr(parameter, "is_flag", False):
        return f"{name} takes no value: give {name} alone"
    expected = expected_value(typing.get_type_hints(context.command.callback)[parameter.name])
    wrong: list[Any] = getattr(error.__cause__, "errors", list)()  # of pydantic, which typer uses
    if wrong:
        value = wrong[0]["input"]
        if expected == "a whole number" and re.fullmatch(r"0?\.\d+|.*%", str(value)):
            expected += ", not a share"
        meant = words_of_toolkits("values").get(str(value), "")
        advice = f": did you mean {meant}?" if meant and meant in expected else ""
        return f"{name} is {shown(value)}, but must be {expected}{advice}"
    return f"{name} needs {_taken(parameter, expected)}"


def _explain_unknown_option(name: str, context: typer.Context) -> str:
    """Return the message about an unknown option of a command, with similar options."""
    for words, reason in words_of_toolkits("needless_flags").items():
        if name.lstrip("-") in words.split():
            return f"no such option {name}: leave it out, {reason}"
    parameters = [*context.command.params]
    flags = [flag for p in parameters for flag in (*p.opts, *p.secondary_opts)]
    arguments = [p.metavar for p in parameters if p.param_type_name == "argument" and p.metavar]
    known = [flag for flag in flags if flag.startswith("--")] + arguments
    # Of -lr, typer names the first letter only: too little to be an abbreviation.
    found = suggest(name, known, is_word=not name.startswith("--"))
    shown = [f"{each} without a flag" if each in arguments else each for each in found]
    return f"no such option {name}{_advice(context, shown)}"


def _advice(context: typer.Context, names: list[str]) -> str:
    if names:
        return f": did you mean {' or '.join(names)}?"
    return f" (see {context.command_path} --help)"


app = typer.Typer(
    cls=Commands,
    help='Train, run and score the Transformer of "Attention Is All You Need".\n\n'
    "Stages: prepare → learn-bpe → binarize → train → average → generate → score. Each finds the "
    "output of the previous one. Start with: tfm quickstart",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Print versions and exit."),
) -> None:
    if version:
        typer.echo(f"tfm {__version__}, {_torch_and_device()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


def _torch_and_device() -> str:
    """Return the version of torch and the device that is used by default."""
    try:
        from tfm.machine.compute import torch_and_device
    except (ImportError, OSError) as error:
        return f"torch cannot be loaded ({error}): see tfm doctor"
    return torch_and_device()
