"""Fast ways to compute parts of the model, and the plain ones that they are held against.

For a GPU, a module `x` holds the plain twin and what both share; `x_triton` holds the kernels and
offers the same names with the same signatures. Which of them is used is chosen by the caller, and
only where `has_triton` may `x_triton` be imported: the CPU build of torch comes without Triton.
"""

from importlib.util import find_spec


def has_triton() -> bool:
    """Whether the modules with kernels can be imported."""
    return find_spec("triton") is not None
