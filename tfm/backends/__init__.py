"""Backends: implementations of a model's layers, in plain torch or faster on one kind of device.

`selection` chooses one. Import `tfm.backends.triton` only if `has_triton`: the CPU build of torch
comes without Triton.
"""

from importlib.util import find_spec


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None
