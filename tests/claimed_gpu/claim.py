"""Make a CPU build of torch believe that there is a CUDA device; a plugin of pytest."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

GUARD = "TFM_TEST_GPU_GUARD"  # environment variable: the path of the library that `build` returns
_TORCH = Path(str(importlib.util.find_spec("torch").origin)).parent
# Those of an H100 that torch's compiler and the package ask for.
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30, gcnArchName="",
    multi_processor_count=132, warp_size=32, regs_per_multiprocessor=1 << 16,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024,
)  # fmt: skip


def problem() -> str | None:
    """Return why no device can be claimed; None if one can."""
    if (_TORCH / "lib/libtorch_cuda.so").exists():
        return "torch is built for CUDA"
    has_library = (_TORCH / "lib/libtorch_cpu.so").exists()
    return None if has_library and shutil.which("g++") else "needs libtorch_cpu.so and g++"


def build(folder: Path) -> Path:
    """Compile the guard library into a folder, and return its path."""
    library, source = folder / "guard.so", Path(__file__).with_name("guard.cpp")
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{_TORCH}/include"]
    links = [f"-L{_TORCH}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{_TORCH}/lib"]
    subprocess.run(["g++", *flags, source, "-o", library, *links], check=True)
    return library


if GUARD in os.environ:  # before torch is imported
    ctypes.CDLL(os.environ[GUARD])
    import torch

    # A backward pass in this thread sees the dispatch modes of this thread.
    torch.autograd.grad_mode.set_multithreading_enabled(False)
    torch._C._set_only_lift_cpu_tensors(True)  # modes see copies of new tensors to the device


@contextmanager
def claimed_gpu(mark: type) -> Iterator[None]:
    """Let `torch.cuda` tell of one H100, whose streams and events are of this class."""
    import torch

    answers = {
        "is_available": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": PROPERTIES.name,
        "get_device_properties": PROPERTIES,
        "get_device_capability": (PROPERTIES.major, PROPERTIES.minor),
        "device": nullcontext(),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        **dict.fromkeys(("_lazy_init", "set_device", "empty_cache", "set_rng_state")),
    }
    functions = {name: lambda *_, found=found, **__: found for name, found in answers.items()}
    functions |= {"Event": mark, "Stream": mark, "current_stream": lambda device=None: mark()}
    with patch.multiple(torch.cuda, **functions):
        yield
