"""Settings as TOML files."""

import json
import typing
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from tfm.config.groups import RunConfig
from tfm.config.schema import Settings
from tfm.errors import UsageError

if typing.TYPE_CHECKING:
    import tomllib
else:
    try:
        import tomllib
    except ModuleNotFoundError:
        import tomli as tomllib


def run_toml(run: RunConfig) -> str:
    """All settings of a run as a TOML file, each with its help."""
    lines = [f'arch = "{run.arch}"']
    for item in fields(run):
        group = getattr(run, item.name)
        if isinstance(group, Settings):
            lines += ["", f"[{item.name}]", *(_toml_line(f, group) for f in fields(group))]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: It is not there or not TOML; the message says where it breaks.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from error


def _toml_line(item: Field[Any], group: Settings) -> str:
    value = getattr(group, item.name)
    assignment = f"# {item.name} =" if value is None else f"{item.name} = {json.dumps(value)}"
    return f"{assignment:<36} # {item.metadata['help']}"
