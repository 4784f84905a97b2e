"""Tensors and plain values as safetensors files, which cannot contain code."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfm.config.values import from_table
from tfm.disk.files import sha256_of

RecordT = TypeVar("RecordT")

_STATE_KEY = "state"
_MAX_INTEGER = 2**63 - 1
_ERROR_NUMBER = re.compile(r"\(os error ([0-9]+)\)")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None
) -> str:
    """Write tensors of any shape as a safetensors file; return its SHA-256 in hexadecimal.

    Contiguous tensors on the CPU are not copied. Tensors on a GPU are all copied to the CPU first.
    """
    path.touch()
    mode = path.stat().st_mode  # respects the umask, unlike the library
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(contiguous, path, metadata)
    except SafetensorError as error:
        if number := _ERROR_NUMBER.search(str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        raise
    path.chmod(mode)
    return sha256_of(path)


def write_state(path: Path, state: Mapping[str, Any]) -> str:
    """Write nested mappings, lists and tuples of tensors and plain values.

    Returns:
        The SHA-256 of the file in hexadecimal.
    """
    tensors: dict[str, Tensor] = {}
    outline = json.dumps(_to_outline(state, (), tensors))
    return write_tensors(path, tensors, metadata={_STATE_KEY: outline})


def read_state(path: Path) -> Any:
    """Read a file of `write_state`; tensors are copied out of the memory-mapped file.

    Views would occupy the space of a removed file on the disk.
    """
    with safe_open(path, "pt") as file:
        outline = json.loads((file.metadata() or {})[_STATE_KEY])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    return _from_outline(outline, tensors)


def record_from(kind: type[RecordT], values: Mapping[str, Any]) -> RecordT:
    """Build a dataclass of numbers and flags from saved values; integers are counts.

    Values that are missing have their defaults; others that the dataclass lacks are ignored.
    """
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    return from_table(kind, {name: value for name, value in values.items() if name in names})


def count(value: Any, *, at_least: int = 0) -> int:
    """Return a saved count; raise ValueError if it is not an integer within the limits."""
    if type(value) is not int or not at_least <= value <= _MAX_INTEGER:
        raise ValueError("a count is not an integer, or out of range")
    return value


def _to_outline(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON that refers to tensors by name, and collect them in `tensors`."""
    match value:
        case Tensor():
            name = "/".join(path)
            if name in tensors:
                raise ValueError(f"two tensors would have the name {name}")
            tensors[name] = value
            return {"tensor": name}
        case Mapping():
            items = value.items()
            pairs = [[key, _to_outline(item, (*path, str(key)), tensors)] for key, item in items]
            return {"mapping": pairs}
        case list() | tuple():
            kind = "tuple" if isinstance(value, tuple) else "list"
            children = enumerate(value)
            return {kind: [_to_outline(item, (*path, str(i)), tensors) for i, item in children]}
    return value


def _from_outline(outline: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of an outline; inverse of `_to_outline`."""
    match outline:
        case {"tensor": name}:
            return tensors[name]
        case {"mapping": pairs}:
            return {key: _from_outline(item, tensors) for key, item in pairs}
        case {"tuple": items}:
            return tuple(_from_outline(item, tensors) for item in items)
        case {"list": items}:
            return [_from_outline(item, tensors) for item in items]
        case None | bool() | int() | float() | str():
            return outline
    raise TypeError("not an outline")
