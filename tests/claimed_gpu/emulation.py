"""Tensors that say they are on a GPU and compute on the CPU, and what a GPU would make of them.

Where a GPU and the host run side by side, an emulated device shows what goes wrong or slowly: the
host waits, reads a copy that has not arrived, or mixes tensors of both; memory that nobody has
written is read.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from claimed_gpu.claim import claimed_gpu
from claimed_gpu.kernels import KERNELS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)
# Operations whose result the host must know to continue.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}
_COPIES = {"_to_copy", "copy_"}
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class EmulatedTensor(torch.Tensor):
    """A tensor on the GPU, whose values are those of `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "EmulatedTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=CUDA,
        )
        tensor.host = host
        return tensor

    def __repr__(self, **_) -> str:
        return f"EmulatedTensor({self.host})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise RuntimeError(f"{operation} on a GPU in a thread that no emulation sees")


class Emulation(TorchDispatchMode):
    """Runs what is on the GPU.

    Attributes:
        waits: Each wait of the host, by its reason and line.
        launches: The operations on the device, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.copies: list[tuple[Tensor, Tensor]] = []  # to the host: destination and values

    def clear(self) -> None:
        """Forget waits and launches."""
        self.waits.clear()
        self.launches.clear()

    def wait(self, reason: str) -> None:
        """Record a wait of the host."""
        self.waits[f"{reason} at {_caller()}"] += 1

    def arrive(self, num_copies: int) -> None:
        """Complete the first N copies to the host."""
        for destination, values in self.copies[:num_copies]:
            destination.copy_(values)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operation._schema.name.split("::")[1]
        if "pin_memory" in name:
            return args[0]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = [x for x in tensors if isinstance(x, EmulatedTensor)]
        device = kwargs.get("device")
        makes_gpu = bool(on_gpu) if device is None else torch.device(device).type == "cuda"
        if not on_gpu and not makes_gpu:
            return operation(*args, **kwargs)
        self.launches[name] += 1
        on_host = [x for x in tensors if not isinstance(x, EmulatedTensor) and x.dim()]
        if on_gpu and on_host and name not in _COPIES and not _is_indexing(name):
            raise RuntimeError(f"{name} of tensors on the host and the GPU at {_caller()}")
        if on_gpu and (name in _WAITING or _finds_size(operation, args)):
            self.wait(name)
        if name in _COPIES and (on_host or not makes_gpu):
            if not kwargs.get("non_blocking", name == "copy_" and args[-1] is True):
                self.wait("copy")
        elif on_host and _is_indexing(name):
            self.wait("copy of an index")
        return self._run(operation, name, args, kwargs, on_gpu, makes_gpu=makes_gpu)

    def _run(self, operation, name, args, kwargs, on_gpu, *, makes_gpu):
        inputs = {id(x.host): x for x in on_gpu}
        args, kwargs = tree_map_only(EmulatedTensor, lambda x: x.host, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        found = KERNELS.get(name, operation)(*args, **kwargs)
        if not makes_gpu:
            return self._copied(found, args[0], kwargs) if name == "_to_copy" else found
        if name in _UNWRITTEN:
            _spoil(found)
        return tree_map_only(
            Tensor, lambda x: inputs[id(x)] if id(x) in inputs else EmulatedTensor(x), found
        )

    def _copied(self, found: Tensor, values: Tensor, kwargs) -> Tensor:
        """Return a copy to the host, which arrives with the next wait unless it is blocking."""
        if found is values or found.data_ptr() == values.data_ptr():
            found = values.clone()
        if kwargs.get("non_blocking"):
            self.copies.append((found, found.clone()))
            _spoil(found)
        return found


@contextmanager
def emulated_gpu() -> Iterator[Emulation]:
    """Emulate a GPU in this block, in this thread."""
    emulation = Emulation()

    class Stream:
        def synchronize(self) -> None:
            emulation.wait("synchronize")
            emulation.arrive(len(emulation.copies))

    class Event:
        def __init__(self, **_) -> None: ...

        def record(self) -> None:
            self._num_copies = len(emulation.copies)

        def synchronize(self) -> None:
            emulation.wait("synchronize")
            emulation.arrive(self._num_copies)

        def elapsed_time(self, _) -> float:
            return 1.0

    def without_gradient(mode: bool = True):
        return torch.no_grad() if mode else nullcontext()

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        # Inference tensors cannot be wrapped.
        inference_mode = patch.object(torch, "inference_mode", without_gradient)
        with claimed_gpu(Stream, Event), inference_mode, emulation:
            yield emulation
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def _is_indexing(name: str) -> bool:
    return name in ("index", "index_put", "index_put_", "_index_put_impl_")


def _finds_size(operation, args) -> bool:
    """Return whether the size of an operation's result or work depends on values."""
    name = operation._schema.name.split("::")[1]
    if name == "repeat_interleave":
        return isinstance(args[0], Tensor)
    if not _is_indexing(name):
        return False
    masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
    # A single value is written by masked_fill.
    return bool(masks) and (name == "index" or args[2].numel() > 1)


def _spoil(x: Tensor) -> None:
    """Fill memory with values that should be noticed."""
    if x.is_floating_point():
        x.fill_(math.nan)
    else:
        x.fill_(True if x.dtype == torch.bool else torch.iinfo(x.dtype).min // 2)


def _caller() -> str:
    """Return file and line of the package that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        folder, _, path = frame.f_code.co_filename.rpartition("/tfm/")
        if folder and "site-packages" not in folder:
            return f"tfm/{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "a test"
