"""Weights for CTranslate2 in narrower types, in which it stores and multiplies them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tfm.applications.export import Quantization
from tfm.translation.ctranslate2_files import Variables

Array = npt.NDArray[Any]

_INT16_RANGE = 2**10  # products of 20 bits leave 12 bits for their sum


def quantized(variables: Variables, quantization: Quantization) -> Variables:
    """Return the variables of a model with quantized matrices; shared ones stay shared."""
    kind, _, others = quantization.partition("_")
    results: dict[int, list[Array]] = {}
    for name, array in list(variables):
        if array.ndim == 0 or quantization == "none":
            yield name, array
        elif not name.endswith("/weight") or not kind.startswith("int"):
            yield name, results.setdefault(id(array), [_narrowed(array, others or kind)])[0]
        else:
            if id(array) not in results:
                results[id(array)] = _integers(array, kind)
            yield name, results[id(array)][0]
            yield f"{name}_scale", results[id(array)][1]


def _narrowed(array: Array, kind: str) -> Array:
    """Return an array in float16 or bfloat16, rounded to even; otherwise as it is."""
    if kind == "float16":
        return array.astype(np.float16)
    if kind != "bfloat16":
        return array
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _integers(matrix: Array, kind: str) -> list[Array]:
    """Return a matrix as integers, and their scale: of each row in int8, of all in int16."""
    if kind == "int16":
        scale = np.array(_INT16_RANGE / np.abs(matrix).max(), np.float32)
        return [np.rint(matrix * scale).astype(np.int16), scale]
    largest = np.abs(matrix).max(axis=1)
    scales = np.float32(127) / np.where(largest == 0, np.float32(127), largest)
    return [np.rint(matrix * scales[:, None]).astype(np.int8), scales]
