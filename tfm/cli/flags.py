"""Typer commands made of functions: arguments and flags from parameters and settings."""

import inspect
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import Any

import typer

from tfm.cli.app import HELP_ALL, Command, app
from tfm.cli.output import FORMS, Form, print_result
from tfm.commands.declaration import (
    Declaration,
    Parameter,
    TextPairs,
    declaration_of,
    is_repeatable,
)
from tfm.config import Settings, flag_of
from tfm.config.schema import Problem
from tfm.disk.paths import check_streams
from tfm.errors import UsageError, refuse
from tfm.reporting import Result

Call = partial[Any]  # of a function with its arguments


def add_command(
    function: Callable[..., Any],
    run: Callable[..., object] = lambda call, /: call(),
    *,
    name: str | None = None,
    panel: str | None = None,
    cls: type[Command] = Command,
    forms: Sequence[Form] = (),
) -> None:
    """Add a function, which `command` has declared, to the command line.

    Args:
        function: The function.
        run: Makes a `Call`; a `Result` that it returns is printed. Its keywords are flags that only
            the command line has; they follow the function's parameters.
        name: The name of the command; by default the function's name.
        panel: The section of tfm --help.
        cls: The class of the command.
        forms: In which forms the result can be printed, besides text; each has a flag.
    """
    declaration, terminal = declaration_of(function), Declaration.of(run).parameters
    parameters = {**declaration.parameters, **terminal}
    settings = declaration.settings()
    flag_names = {name: flag_of(next(iter(items.values()))) for name, items in settings.items()}
    is_long = len(declaration.groups) > 1  # --help shows common settings only
    flags = [
        *(_flag_of_parameter(each) for each in parameters.values()),
        *(_flag(form, bool, typer.Option(False, f"--{form}", help=FORMS[form])) for form in forms),
        *([_flag("help_all", bool, HELP_ALL)] if is_long else []),
        *(_flag_of_setting(each, is_long=is_long) for each in settings.values()),
    ]

    def call(**values: Any) -> None:
        values.pop("help_all", None)  # its callback has read it
        chosen = [form for form in forms if values.pop(form)]
        if len(chosen) > 1:
            raise UsageError(f"--{' and --'.join(chosen)} exclude each other: give one")
        given = {name: value for name, value in values.items() if value not in (None, [])}
        check_streams(declaration.inputs(given))
        for name in given.keys() & parameters.keys():
            if parameters[name].flag.kind == TextPairs:
                given[name] = [*zip(given[name][::2], given[name][1::2], strict=True)]
        own = {name: given.pop(name) for name in terminal if name in given}
        try:
            result = run(Call(function, **given), **own)
        except UsageError as error:
            refuse(_with_flags(each, flag_names, given) for each in error.problems)
            raise
        if isinstance(result, Result):
            print_result(result, *chosen)
            if not result.passed:
                raise typer.Exit(1)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in flags}
    name = name or function.__name__.replace("_", "-")
    app.command(name, help=declaration.help, rich_help_panel=panel, cls=cls)(call)


def _with_flags(problem: object, flags: Mapping[str, str], given: Container[str]) -> object:
    """Return a problem with the flags of settings, if it is about one that is given."""
    if isinstance(problem, Problem) and problem.name in given:
        return problem.with_flags(flags)
    return problem


def _flag(name: str, annotation: Any, option: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=option, annotation=annotation)


def _flag_of_parameter(parameter: Parameter) -> inspect.Parameter:
    """Declare the argument or flag of a parameter."""
    flag, hint, default = parameter.flag, parameter.flag.kind or parameter.hint, parameter.default
    if is_repeatable(hint):
        item = Path if hint == TextPairs else typing.get_args(hint)[0]
        hint, default = list[item] | None, default or None  # type: ignore[valid-type]
    shown: dict[str, Any] = {
        "metavar": flag.metavar,
        "help": parameter.help,
        "hidden": flag.hidden,
        "rich_help_panel": flag.panel,
        "show_default": bool(default),  # 0 is none
    }
    if flag.default is not None:
        shown["help"] = f"{parameter.help.removesuffix('.')} (default: {flag.default})."
    if choices := flag.choices:
        start, _, rest = parameter.help.partition(" (")
        shown["help"] = f"{start}: {', '.join(choices())} ({rest}"
        shown["autocompletion"] = lambda incomplete: [
            each for each in choices() if each.startswith(incomplete)
        ]
    if not parameter.has_flag:
        default = ... if default is inspect.Parameter.empty else default
        return _flag(parameter.name, hint, typer.Argument(default, **shown))
    name = parameter.flag_name
    name += f"/--no-{name.removeprefix('--')}" * (default is True)
    return _flag(parameter.name, hint, typer.Option(default, name, **shown))


def _flag_of_setting(
    items: Mapping[type[Settings], Field[Any]], *, is_long: bool
) -> inspect.Parameter:
    """Declare the flag of a setting, which may be in several groups.

    If the help `is_long`, it has a section for each group, and --help shows common settings only.
    """
    item = next(iter(items.values()))
    sections = dict.fromkeys(f"[{kind.section}]" for kind in items)
    hint: Any = item.type
    name, default = flag_of(item), item.default
    if hint is bool:
        negated = "" if name.startswith("--no-") else f"/--no-{name.removeprefix('--')}"
        name += negated
        default = "yes" if default else "no"
    if typing.get_origin(hint) is tuple:  # a repeatable flag
        hint, default = list[str], None
    option = typer.Option(
        None,
        name,
        metavar=item.metadata["metavar"],
        help=item.metadata["help"] + ("" if default is None else f" (default: {default})"),
        show_default=False,
        hidden=is_long and not item.metadata["common"],
        rich_help_panel=f"Settings {' '.join(sections)}" if is_long else None,
    )
    return _flag(item.name, hint | None, option)
