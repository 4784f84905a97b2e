"""How the C library reuses freed memory on a CPU."""

import ctypes
import sys

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse.

    By default the large tensors that each training step frees and allocates again are mapped anew,
    and the kernel clears their pages: a tenth of the time of a step.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, sys.maxsize & 0x7FFFFFFF)
