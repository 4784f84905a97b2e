"""Settings as command-line flags: one flag for each field of a settings dataclass."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any, Optional, TypeVar

import typer

from tfm.config import Settings

Result = TypeVar("Result")

# {section: {name: value}} of the flags that were given.
Given = Mapping[str, Mapping[str, Any]]


def with_settings(
    *kinds: type[Settings],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command a flag for each setting of some groups.

    The command takes a parameter `given` of type `Given`; in the help, the flags stand after its
    other parameters.

    Args:
        *kinds: The groups of settings.
    """
    # Groups that share a section may share settings: each has one flag.
    by_name = {(kind.section, item.name): (kind, item) for kind in kinds for item in fields(kind)}
    items = list(by_name.values())

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(command)
        def run(**values: Any) -> Result:
            given: dict[str, dict[str, Any]] = {}
            for kind, item in items:
                value = values.pop(item.name)
                if value is not None:
                    given.setdefault(kind.section, {})[item.name] = value
            return command(**values, given=given)

        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["given"]
        flags = [_parameter(kind, item, titled=len(kinds) > 1) for kind, item in items]
        run.__signature__ = inspect.Signature([*own.values(), *flags])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*own.values(), *flags)}
        return run

    return decorate


def _parameter(kind: type[Settings], item: Field[Any], *, titled: bool) -> inspect.Parameter:
    hint = typing.get_type_hints(kind)[item.name]
    name = item.metadata["flag"] or "--" + item.name.replace("_", "-")
    if hint is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
    default: Any = item.default
    if hint is bool:
        default = "yes" if default else "no"
    shown = "" if default is None else f" (default {default})"
    option = typer.Option(
        name,
        help=item.metadata["help"] + shown,
        show_default=False,
        rich_help_panel=f"Settings \\[{kind.section}]" if titled else None,
    )
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[hint], option],  # noqa: UP045 - the type is a value here
    )
