"""Reading and writing settings as TOML files."""

import json
import re
import tomllib
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from tfm.config.schema import Settings, TomlTable
from tfm.config.training import RunConfig
from tfm.errors import UsageError, explain_os_error

_HEADER_OR_KEY = re.compile(r"\s*(?:\[(\[?)([^]#]*)\]|([^=#]*)=)")
_MAX_BYTES = 1 << 20
_MAX_DOTS = 100  # per line: tomllib takes minutes for a key of thousands of parts


def run_toml(run: RunConfig) -> str:
    """Return all settings of a run as the text of a TOML file, each with its help.

    Raises:
        UsageError: A path is not UTF-8, which TOML cannot express.
    """
    lines = [f'arch = "{run.arch}"']
    if run.from_model is not None:
        lines.append(f"from_model = {_toml_value(run.from_model)}")
    for section in fields(run):
        group = getattr(run, section.name)
        if isinstance(group, Settings):
            lines += ["", f"[{section.name}]"]
            for item in fields(group):
                value = getattr(group, item.name)
                unset = f"# {item.name} ="
                assignment = unset if value is None else f"{item.name} = {_toml_value(value)}"
                lines.append(f"{assignment:<36} # {item.metadata['help']}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Return a value in TOML, which writes text as JSON does but for one control character."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if text.encode(errors="replace").decode() != text:
        raise UsageError(f"{text} is not UTF-8: rename it")
    return text


def read_toml(path: Path) -> TomlTable:
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
        return TomlTable(tomllib.loads(text), path=path, lines=_lines_of_keys(text))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: check its name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {explain_os_error(error)}") from error
    except RecursionError:
        raise UsageError(f"{path} is not a TOML file of settings: it nests too deeply") from None
    except ValueError as error:  # not only TOMLDecodeError: int() refuses thousands of digits
        raise UsageError(f"{path} is not a TOML file: {error}") from error


def _lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """Return the number of the first line of each section and key: ("model", "d_ff"): 3.

    The second table under [[train]] is the section ("train", "2").
    """
    lines: dict[tuple[str, ...], int] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER_OR_KEY.match(line):
            is_list, header, key = match.groups()
            names = tuple(part.strip(" \t\"'") for part in (header or key).split("."))
            if header is None:
                lines.setdefault(section + names, number)
                continue
            lines.setdefault(names, number)
            counts[names] += 1
            section = (*names, str(counts[names])) if is_list else names
            lines.setdefault(section, number)
    return lines
