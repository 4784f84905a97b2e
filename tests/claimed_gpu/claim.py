"""Make a CPU build of torch believe that there is a CUDA device. Imports torch only on request."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

GUARD = "TFM_TEST_GPU_GUARD"  # environment variable: the path of the library that `build` returns
# What torch and the package ask of the properties of an H100.
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=1 << 16,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=50 << 20,
    gcnArchName="",
)


def problem() -> str | None:
    """Return why no device can be claimed; None if one can."""
    torch_dir = _torch_dir()
    if (torch_dir / "lib/libtorch_cuda.so").exists():
        return "torch is built for CUDA"
    if not (torch_dir / "lib/libtorch_cpu.so").exists():
        return "torch has no libtorch_cpu.so"
    return None if shutil.which("g++") else "g++ is not installed"


def build(folder: Path) -> Path:
    """Compile the guard library into a folder, and return its path."""
    library, torch_dir = folder / "guard.so", _torch_dir()
    source = Path(__file__).with_name("guard.cpp")
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch_dir}/include"]
    links = [f"-L{torch_dir}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_dir}/lib"]
    subprocess.run(["g++", *flags, source, "-o", library, *links], check=True)
    return library


def load() -> None:
    """Load the guard library; torch must not be imported before."""
    ctypes.CDLL(os.environ[GUARD])
    import torch

    # A backward pass in this thread sees the dispatch modes of this thread.
    torch.autograd.grad_mode.set_multithreading_enabled(False)


@contextmanager
def claimed_gpu(stream: type, event: type) -> Iterator[None]:
    """Let `torch.cuda` tell of one H100, whose streams and events are of these classes."""
    import torch

    random_state = torch.zeros(16, dtype=torch.uint8)
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device=None: nullcontext(),
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
        "is_bf16_supported": lambda including_emulation=True: True,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: random_state,
        "set_rng_state": lambda state, device=None: None,
        "empty_cache": lambda: None,
        "Event": event,
        "Stream": stream,
        "current_stream": lambda device=None: stream(),
        "synchronize": lambda device=None: stream().synchronize(),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        yield


def _torch_dir() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
