"""How the model's layers are computed: in plain torch, or fast on a kind of device.

`selection` chooses the backend of a device. Only where `has_triton` may `tfm.backends.triton` be
imported: the CPU build of torch comes without Triton.
"""

from importlib.util import find_spec


def has_triton() -> bool:
    """Whether the modules with kernels can be imported."""
    return find_spec("triton") is not None
