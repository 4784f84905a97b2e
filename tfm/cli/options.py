"""Command-line flags generated from settings: one for each field of a dataclass."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields
from functools import partial, wraps
from typing import Any, TypeVar

import typer

from tfm.cli.help import HELP_ALL
from tfm.config import Settings, by_section, flag_of

Result = TypeVar("Result")

# {section: {name: value}} of the flags that were given.
Overrides = Mapping[str, Mapping[str, Any]]

# Flags with and without a value that only --help-all shows.
hidden_option = partial(typer.Option, None, hidden=True)
hidden_switch = partial(typer.Option, False, hidden=True)


def with_settings(
    *kinds: type[Settings],
    help_all: bool = False,
    without: Collection[str] = (),
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Add a flag for each setting of some groups to a command, after its other parameters.

    The command receives the given flags in its parameter `overrides` of type `Overrides`. With
    `help_all`, its --help shows common settings only, and a flag --help-all shows all. It has no
    flags for the settings `without`.
    """
    # A setting that several groups have is one flag, which sets it in all their sections.
    settings: dict[str, dict[type[Settings], Field[Any]]] = {}
    for kind in kinds:
        for item in fields(kind):
            if item.name not in without:
                settings.setdefault(item.name, {})[kind] = item

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(command)
        def run(**values: Any) -> Result:
            values.pop("help_all", None)  # its callback has read it
            given = {name: values.pop(name) for name in settings}
            return command(**values, overrides=by_section(kinds, given))

        arguments = dict(inspect.signature(command, eval_str=True).parameters)
        del arguments["overrides"]
        flags = [
            _flag(items, titled=len(kinds) > 1, is_short=help_all) for items in settings.values()
        ]
        all_flags = inspect.Parameter(
            "help_all", inspect.Parameter.KEYWORD_ONLY, default=HELP_ALL, annotation=bool
        )
        parameters = [*arguments.values(), *([all_flags] if help_all else []), *flags]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _flag(
    items: Mapping[type[Settings], Field[Any]], *, titled: bool, is_short: bool
) -> inspect.Parameter:
    """Declare the flag of a setting, which may be in several groups.

    In sections if it is `titled`; if the help `is_short`, only common settings are shown.
    """
    kind, item = next(iter(items.items()))
    sections = dict.fromkeys(f"[{kind.section}]" for kind in items)
    hint = typing.get_type_hints(kind)[item.name]
    name = flag_of(item)
    default: Any = item.default
    if hint is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
        default = "yes" if default else "no"
    if typing.get_origin(hint) is tuple:  # a repeatable flag
        hint, default = list[str], None
    option = typer.Option(
        None,
        name,
        metavar=item.metadata["metavar"],
        help=item.metadata["help"] + ("" if default is None else f" (default: {default})"),
        show_default=False,
        hidden=is_short and not item.metadata["common"],
        rich_help_panel=f"Settings {' '.join(sections)}" if titled else None,
    )
    return inspect.Parameter(
        item.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=hint | None
    )
