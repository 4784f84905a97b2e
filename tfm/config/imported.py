"""Code of users, which settings name as MODULE:NAME."""

import re
from importlib import import_module
from typing import Any

from tfm.errors import UsageError

NAMED = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


def imported(name: str, label: str) -> Any:
    """Import what MODULE:NAME names, for a setting that errors call `label`.

    This runs the module. So only a name that the user has given to this call is imported, never one
    that a model or run records.
    """
    module_name, _, attribute = name.partition(":")
    if NAMED.fullmatch(name) is None:
        raise UsageError(f"{label} is {name}, but must be of the form MODULE:NAME")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # of a module that the user's imports
        raise UsageError(
            f"{label} is {name}, but Python finds no module {error.name}: install it, or put its "
            "folder into PYTHONPATH"
        ) from None
    if not hasattr(module, attribute):
        raise UsageError(f"{label} is {name}, but {module_name} has no {attribute}: check the name")
    return getattr(module, attribute)
