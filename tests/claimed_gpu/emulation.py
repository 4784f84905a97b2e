"""Tensors that say they are on a GPU and compute on the CPU, and what a GPU would make of them."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
from claimed_gpu.claim import claimed_gpu
from claimed_gpu.kernels import KERNELS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# Operations whose result the host must know to continue.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_COPYING = {"_to_copy", "copy_"}


class EmulatedTensor(torch.Tensor):
    """A tensor on the GPU, whose values are those of `host`."""

    @staticmethod
    def __new__(cls, host: Tensor) -> "EmulatedTensor":
        layout = host.shape, host.stride(), host.storage_offset()
        make = torch.Tensor._make_wrapper_subclass
        tensor = make(cls, *layout, dtype=host.dtype, device="cuda:0")
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise RuntimeError(f"{operation} on a GPU in a thread that no emulation sees")


class Emulation(TorchDispatchMode):
    """Runs what is on the GPU.

    Attributes:
        waits: Each wait of the host, by its reason and line.
        launches: The operations on the device, by name.
        copies: Copies to the host that have not been waited for: destination and values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.copies: list[tuple[Tensor, Tensor]] = []

    def forget(self) -> None:
        self.waits.clear()
        self.launches.clear()

    def wait(self, reason: str) -> None:
        self.waits[f"{reason} at {_caller()}"] += 1

    def synchronize(self, num_copies: int | None) -> None:
        """Wait for the first N copies to the host, or for all."""
        self.wait("synchronize")
        for destination, values in self.copies[:num_copies]:
            destination.copy_(values)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operation._schema.name.split("::")[1]
        if "pin_memory" in name:
            return args[0]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = [x for x in tensors if isinstance(x, EmulatedTensor)]
        on_host = [x for x in tensors if not isinstance(x, EmulatedTensor) and x.dim()]
        device = kwargs.get("device")
        makes_gpu = bool(on_gpu) if device is None else torch.device(device).type == "cuda"
        if not on_gpu and not makes_gpu:
            return operation(*args, **kwargs)
        self.launches[name] += 1
        if name in _COPYING:
            is_async = kwargs.get("non_blocking") or (name == "copy_" and args[-1] is True)
            if (on_host or not makes_gpu) and not is_async:
                self.wait("copy")
        elif on_gpu and on_host and name not in _INDEXING:
            raise RuntimeError(f"{name} of tensors on the host and the GPU at {_caller()}")
        elif on_gpu and (name in _WAITING or _depends_on_values(name, args) or on_host):
            self.wait(name)
        return self._run(operation, name, args, kwargs, on_gpu, makes_gpu=makes_gpu)

    def _run(self, operation, name, args, kwargs, on_gpu, *, makes_gpu):
        wrappers = {id(x.host): x for x in on_gpu}
        args, kwargs = tree_map_only(EmulatedTensor, lambda x: x.host, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        found = KERNELS.get(name, operation)(*args, **kwargs)
        if not makes_gpu:
            return self._to_host(found, kwargs.get("non_blocking")) if name == "_to_copy" else found
        if "empty" in name:
            _spoil(found)

        def wrap(x: Tensor) -> Tensor:  # once, if an operation returns what it changed
            return wrappers[id(x)] if id(x) in wrappers else EmulatedTensor(x)

        return tree_map_only(Tensor, wrap, found)

    def _to_host(self, values: Tensor, non_blocking: bool | None) -> Tensor:
        """Return a copy, which has wrong values until the host waits unless it is blocking."""
        found = values.clone()
        if non_blocking:
            self.copies.append((found, found.clone()))
            _spoil(found)
        return found


@contextmanager
def emulated_gpu() -> Iterator[Emulation]:
    """Emulate a GPU in this block, in this thread."""
    emulation = Emulation()

    class Mark:
        """A stream, or an event: what has been launched until now."""

        num_copies: int | None = None  # all

        def __init__(self, **_) -> None: ...

        def record(self) -> None:
            self.num_copies = len(emulation.copies)

        def synchronize(self) -> None:
            emulation.synchronize(self.num_copies)

        def elapsed_time(self, _) -> float:
            return 1.0

    def without_gradient(mode: bool = True):  # inference tensors cannot be wrapped
        return torch.no_grad() if mode else nullcontext()

    swaps = patch("torch.__future__.get_swap_module_params_on_conversion", lambda: True)
    # On a GPU, weights move without being swapped, and keep weak references to them.
    weak = patch("torch.utils.weakref", SimpleNamespace(getweakrefs=lambda _: ()))
    no_inference_mode = patch("torch.inference_mode", without_gradient)
    with claimed_gpu(Mark), swaps, weak, no_inference_mode, emulation:  # tied weights stay tied
        yield emulation


def _depends_on_values(name: str, args) -> bool:
    """Return whether the host must know values, or copies one, to launch an operation."""
    if name not in _INDEXING:
        return name == "repeat_interleave" and isinstance(args[0], Tensor)
    is_masked = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    if name == "index":
        return is_masked
    # A number is written to a mask by masked_fill, but is copied to be written to indices.
    return args[2].numel() > 1 if is_masked else not isinstance(args[2], EmulatedTensor)


def _spoil(x: Tensor) -> None:
    """Fill memory with values that should be noticed."""
    is_integer = not (x.is_floating_point() or x.dtype == torch.bool)
    x.fill_(torch.iinfo(x.dtype).min // 2 if is_integer else math.nan)


def _caller() -> str:
    """Return file and line of the package that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        folder, _, path = frame.f_code.co_filename.rpartition("/tfm/")
        if folder and "site-packages" not in folder:
            return f"tfm/{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "a test"
