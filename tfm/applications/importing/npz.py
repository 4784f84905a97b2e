"""The arrays of a file of NumPy (.npz), read without pickle and in bounded memory."""

import errno
import math
import struct
import tokenize
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tfm.errors import CheckpointError
from tfm.text.files import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, damage_errors

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MAX_HEADER_BYTES = 256  # that of a matrix has 118; numpy's parser might take deeply nested ones
# Of damaged archives and headers; a header is a Python literal.
_ERRORS: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, struct.error, RuntimeError),
    *(ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, tokenize.TokenError),
)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of numbers, of any shape, by name.

    Raises:
        CheckpointError: The file is damaged, expands too much, or has an array of objects.
    """
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings(action="ignore"):
            members = archive.infolist()
            limit = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * path.stat().st_size)
            if sum(each.file_size for each in members) > limit:
                raise ValueError("it expands to more than weights can")
            found = {}
            for each in members:
                with archive.open(each) as file:
                    found[each.filename.removesuffix(".npy")] = _array(file, each.file_size)
    except _ERRORS + damage_errors() as error:
        # Decompressors give no number, and a seek to an impossible place EINVAL.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise CheckpointError(
            f"{path} is damaged, or no file of NumPy: download it again"
        ) from error
    return found


def _array(file: IO[bytes], num_bytes: int) -> npt.NDArray[Any]:
    """Return the array in a member of this size; its header may claim another one."""
    read_header = _HEADERS[np.lib.format.read_magic(file)]
    shape, is_fortran, dtype = read_header(file, max_header_size=_MAX_HEADER_BYTES)
    if dtype.kind not in "fiu" or math.prod(shape) * dtype.itemsize != num_bytes - file.tell():
        raise ValueError("it is no array of numbers of this size")
    content = bytearray(file.read())  # numpy's own reader would trust the header
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")
