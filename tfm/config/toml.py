"""Reading and writing settings as TOML files."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfm.config.groups import RunConfig
from tfm.config.schema import Settings
from tfm.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_BYTES = 1 << 20
_MAX_DOTS = 100  # per line: tomllib takes minutes for a key of thousands of parts


def run_toml(run: RunConfig) -> str:
    """Return all settings of a run as the text of a TOML file, each with its help."""
    lines = [f'arch = "{run.arch}"']
    for section in fields(run):
        group = getattr(run, section.name)
        if isinstance(group, Settings):
            lines += ["", f"[{section.name}]"]
            for item in fields(group):
                value = getattr(group, item.name)
                unset = f"# {item.name} ="
                assignment = unset if value is None else f"{item.name} = {json.dumps(value)}"
                lines.append(f"{assignment:<36} # {item.metadata['help']}")
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: The file cannot be read or is not TOML; the message names the line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(
                f"{path} is larger than {_MAX_BYTES:,} bytes: is it a file of settings?"
            )
        text = content.decode("utf-8")
        if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
            raise UsageError(f"{path} has a line with more than {_MAX_DOTS} dots: split the line")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise UsageError(f"{path} is not a TOML file of settings: it nests too deeply") from None
    except ValueError as error:  # not only TOMLDecodeError: int() refuses thousands of digits
        raise UsageError(f"{path} is not a TOML file: {error}") from error
