"""Tensors and plain values as safetensors files, which cannot hold code."""

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

_STATE_KEY = "state"
_BLOCK_BYTES = 1 << 22  # hashed and written in turn, while it is still in the processor's cache
_HEADER_ALIGNMENT = 8
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> str:
    """Write a safetensors file, and return its SHA-256 in hexadecimal.

    Tensors on a CPU are not copied, and those on a GPU one at a time. The library's `save_file`
    leaves a file that nobody else may read, whatever the umask, and a full disk is no OSError.
    """
    # Widest elements first, so that all are aligned; the same tensors always in the same order.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    digest = hashlib.sha256()
    with path.open("wb") as file:
        contents = (memoryview(_bytes(tensor)) for _, tensor in ordered)
        for content in chain([memoryview(_header(ordered, metadata))], contents):
            for start in range(0, len(content), _BLOCK_BYTES):
                block = content[start : start + _BLOCK_BYTES]
                digest.update(block)
                file.write(block)
    return digest.hexdigest()


def write_state(path: Path, state: Mapping[str, Any]) -> str:
    """Write nested dictionaries, lists and tuples of tensors and plain values.

    Returns:
        The SHA-256 of the file, in hexadecimal.
    """
    tensors: dict[str, Tensor] = {}
    outline = json.dumps(_outline(state, (), tensors))
    return write_tensors(path, tensors, metadata={_STATE_KEY: outline})


def read_state(path: Path) -> Any:
    """Read what `write_state` wrote, into memory of its own.

    The library's tensors are the mapped file, whose space on the disk they would keep occupied.

    Raises:
        SafetensorError: It is no safetensors file.
        KeyError, TypeError, ValueError, RecursionError: It holds something else.
    """
    with safe_open(path, "pt") as file:
        outline = json.loads((file.metadata() or {})[_STATE_KEY])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    return _filled(outline, tensors)


def _header(tensors: list[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> bytes:
    """The start of a safetensors file: the length of a JSON object, and the object."""
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors:
        start, end = end, end + tensor.numel() * tensor.element_size()
        table[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> Any:
    """The memory of a tensor on the CPU, as a flat buffer."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _outline(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, in which names stand for its tensors; those are put into `tensors`."""
    match value:
        case Tensor():
            name = "/".join(path)
            if name in tensors:
                raise ValueError(f"two tensors would be called {name}")
            tensors[name] = value
            return {"tensor": name}
        case Mapping():
            pairs = [
                [key, _outline(each, (*path, str(key)), tensors)] for key, each in value.items()
            ]
            return {"mapping": pairs}
        case list() | tuple():
            kind = "tuple" if isinstance(value, tuple) else "list"
            parts = [_outline(each, (*path, str(i)), tensors) for i, each in enumerate(value)]
            return {kind: parts}
    return value


def _filled(outline: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value of an outline."""
    match outline:
        case {"tensor": name}:
            return tensors[name]
        case {"mapping": pairs}:
            return {key: _filled(each, tensors) for key, each in pairs}
        case {"tuple": parts}:
            return tuple(_filled(each, tensors) for each in parts)
        case {"list": parts}:
            return [_filled(each, tensors) for each in parts]
        case None | bool() | int() | float() | str():
            return outline
    raise TypeError("something else than a value")
