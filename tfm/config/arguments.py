"""Checks of the arguments of Python functions, which may be of any type."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfm.config.schema import expected_value, shown
from tfm.errors import UsageError


def wrong_argument(name: str, value: Any, expected: str) -> UsageError:
    """Return the error that names an argument, its value and what it must be."""
    return UsageError(f"{name} is {shown(value)}, but must be {expected}")


def check_arguments(kind: type[Any], **values: Any) -> None:
    """Raise UsageError unless each value is of a type, or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            raise wrong_argument(name, value, expected_value(kind))


def path_from(name: str, value: Any) -> Path:
    """Return a path that was given as text or as a path."""
    try:
        path = os.fspath(value)
        is_valid = isinstance(path, str) and b"\0" not in os.fsencode(path)
    except (TypeError, UnicodeError):
        is_valid = False
    if not is_valid:
        raise wrong_argument(name, value, expected_value(Path))
    return Path(value)


def paths_from(name: str, values: Any) -> list[Path]:
    """Return the paths of one or of several; none for None."""
    if values is None:
        return []
    if isinstance(values, str | bytes | os.PathLike) or not isinstance(values, Iterable):
        return [path_from(name, values)]
    return [path_from(f"{name}[{number}]", each) for number, each in enumerate(values)]


def lines_from(name: str, values: Any) -> list[str]:
    """Return the texts of a list, a tuple, a generator and the like, but not of a single text."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise wrong_argument(name, values, "a list of texts")
    lines = list(values)
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise wrong_argument(f"{name}[{number}]", line, "text")
    return lines
