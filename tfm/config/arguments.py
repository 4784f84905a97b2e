"""Checks of the arguments of Python functions, which may be of any type."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from tfm.config.schema import convert
from tfm.errors import UsageError

# Text of any length.
Line = Annotated[str, re.compile(".*", re.DOTALL), "text"]


def argument(name: str, value: Any, hint: Any) -> Any:
    """Return the value of an argument as the type of its hint, as `convert` does.

    Raises:
        UsageError: The value is of another type.
    """
    # Numbers and arrays of NumPy and torch become those of Python.
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        return convert(value, hint, name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def one_or_several(value: Any) -> list[Any]:
    """Return an iterable as a list, one path or text as a list of it, and None as an empty list."""
    if value is None:
        return []
    is_one = isinstance(value, str | bytes | os.PathLike | Mapping)
    return [value] if is_one or not isinstance(value, Iterable) else list(value)
