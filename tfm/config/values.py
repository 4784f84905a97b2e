"""Converting the values of TOML, JSON and Python to the types of fields."""

import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tfm.config.suggestions import did_you_mean

T = TypeVar("T")

Values = Mapping[str, Any]

Line = Annotated[str, re.compile(".*", re.DOTALL), "text"]  # of any length

# A float in a record that is NaN or infinite if training diverged; others must be finite.
Measured = Annotated[float, "may be NaN"]

MAX_UNKNOWN = 20  # unknown names to report: finding similar names takes time
_MAX_INTEGER = 2**63 - 1
_MAX_TEXT = 4096  # characters, as in the longest path
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}


def shown(value: Any) -> str:
    """Format a value for a message, shortened if it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to format integers of thousands of digits
        return "a number of thousands of digits"


def expected_value(hint: Any) -> str:
    """Return what a value of a type must be, in words."""
    kinds = [hint, *typing.get_args(hint)]
    literals = [
        typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is typing.Literal
    ]
    if literals:
        return f"one of {', '.join(map(str, literals[0]))}"
    named = (words for kind, words in _TYPE_NAMES.items() if kind in kinds)
    return next(named, f"a {getattr(hint, '__name__', 'value')}")


def from_table(kind: type[T], table: Values) -> T:
    """Build a dataclass from a JSON object."""
    values, problems = check_table(kind, table)
    if problems:
        raise ValueError("; ".join(problems.values()))
    return kind(**values)


def check_table(
    kind: type[Any],
    table: Values,
    *,
    where: str = "",
    places: Mapping[str, str] = {},
    elsewhere: Mapping[str, str] = {},
) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert the values of a table to the types of the fields of a dataclass.

    Fields may be text, numbers, flags, a Literal, a tuple of any length or a pair, a mapping, or a
    dataclass. Text may have a pattern, and words for it in messages:
    `Annotated[str, re.compile("[a-z]+"), "lower-case letters"]`. Integers are counts from 0 on and
    floats finite unless they are `Measured`, except in settings, which declare their limits.

    Args:
        kind: The dataclass.
        table: Values by name. A value that is a dataclass is taken as it is.
        where: Name of the table in messages.
        places: File and line of values by name, such as "x.toml:3: "; messages start with them.
        elsewhere: Fields of other tables by name, such as "dropout in [model]", to suggest.

    Returns:
        The correct values, and messages about unknown, missing and wrong ones, both by name.
    """
    is_settings = any(item.metadata for item in fields(kind))  # with limits and help
    noun = "setting" if is_settings else "key"
    inside = f" in {where}" if where else ""
    hints = _hints_of(kind)  # type: ignore[arg-type]  # mypy says that types have no hash
    names = [item.name for item in fields(kind)]
    problems = {
        name: f"{places.get(name, '')}unknown {noun} {shown(name)}{inside}: "
        + did_you_mean(name, names, elsewhere, "choose from")
        for name in islice((name for name in table if name not in names), MAX_UNKNOWN)
    }
    values: dict[str, Any] = {}
    for item in fields(kind):
        name = item.name
        try:
            if name in table:
                label = f"{name}{inside}"
                values[name] = convert(table[name], hints[name], label, is_count=not is_settings)
            elif item.default is item.default_factory is MISSING:
                raise ValueError(f"{name} is missing{inside}")
        except ValueError as error:
            problems[name] = f"{places.get(name, '')}{error}"
    return values, problems


@cache  # evaluating hints takes as long as a step of a small model
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def differences(before: Values, after: Values) -> list[str]:
    """Describe each value that differs between two tables, by its name."""
    return [
        f"{name} was {before.get(name, 'unset')}, not {after.get(name, 'unset')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def convert(value: Any, hint: Any, label: str, *, is_count: bool = False) -> Any:
    """Convert a value to a type, as `check_table` does."""
    kinds = typing.get_args(hint)
    if hint is Any or is_dataclass(value):
        return value
    match typing.get_origin(hint):
        case None:
            value = _convert_plain(_as_path(value, hint), hint, label, is_count=is_count)
            if is_count and hint is float and not math.isfinite(value):
                raise _wrong(label, value, "a finite number")
            return value
        case types.UnionType | typing.Union:
            kind = next((each for each in kinds[1:] if each is type(value)), kinds[0])
            return None if value is None else convert(value, kind, label, is_count=is_count)
        case typing.Annotated if kinds[0] is float:
            return _convert_plain(value, float, label, is_count=is_count)
        case typing.Annotated:
            is_valid = isinstance(value, str) and kinds[1].fullmatch(value)
            expected = kinds[2] if len(kinds) > 2 else f"of the form {kinds[1].pattern}"
        case typing.Literal:
            is_valid = type(value) in map(type, kinds) and value in kinds
            expected = expected_value(hint)
        case _:
            return _convert_items(value, hint, label, is_count=is_count)
    if not is_valid:
        raise _wrong(label, value, expected)
    return value


def _as_path(value: Any, hint: type[Any]) -> Any:
    """Return text as a path, or a path as text, where it has that type and there is such a path."""
    if isinstance(value, os.PathLike) and hint in (str, Path):
        value = os.fspath(value)
    with suppress(UnicodeError):
        if hint is Path and isinstance(value, str) and b"\0" not in os.fsencode(value):
            return Path(value)
    return value


def _convert_items(value: Any, hint: Any, label: str, *, is_count: bool) -> Any:
    """Convert a list to a tuple, or the values of a table."""
    first, last = typing.get_args(hint)

    def converted(key: object, item: Any, kind: Any) -> Any:
        return convert(item, kind, f"{label}[{shown(key)}]", is_count=is_count)

    if typing.get_origin(hint) is not tuple:
        if isinstance(value, Mapping):
            return {key: converted(key, item, last) for key, item in value.items()}
        raise _wrong(label, value, "a table")
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    items = list(value) if is_list else []
    if is_list and (last is ... or len(items) == 2):
        return tuple(converted(number, item, first) for number, item in enumerate(items))
    raise _wrong(label, value, "a list" if last is ... else "a list of 2")


def _convert_plain(value: Any, hint: type[Any], label: str, *, is_count: bool) -> Any:
    """Convert text, a number, a flag or a dataclass."""
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(label, value, "a table")
        try:
            return from_table(hint, value)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
    if hint is float and type(value) is int:
        if abs(value) > _MAX_INTEGER:
            raise _wrong(label, value, f"from {-_MAX_INTEGER} to {_MAX_INTEGER}")
        return float(value)
    if not isinstance(value, hint) or isinstance(value, bool) != (hint is bool):
        raise _wrong(label, value, _TYPE_NAMES[hint])
    if is_count and hint is int and not 0 <= value <= _MAX_INTEGER:
        raise _wrong(label, value, f"from 0 to {_MAX_INTEGER}")
    if hint is str and len(value) > _MAX_TEXT:
        raise _wrong(label, value, f"at most {_MAX_TEXT:,} characters")
    return value


def _wrong(label: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{label} is {shown(value)}, but must be {expected}")
