"""Replays of operations on the same memory, as those of CUDA graphs, on a CPU."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Recording(TorchDispatchMode):
    """Records operations and their memory, as a CUDA graph does, without any tensor's values."""

    SYNCHRONIZING = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.is_nonzero.default,
    )

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        is_masked = operation == torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        waits = operation in self.SYNCHRONIZING or is_masked
        assert not waits, f"{operation} waits for the device"
        kwargs = kwargs or {}
        with self:
            result = operation.decompose(*args, **kwargs)
        if result is NotImplemented:
            result = operation(*args, **kwargs)
            # Tensors without gradient functions, in the same memory.
            call = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs, result))
            self.calls.append((operation, *call))
        return result

    def replay(self):
        for operation, args, kwargs, result in self.calls:
            again = operation(*args, **kwargs)
            results = map(tree_leaves, (result, again))
            for old, new in zip(*results, strict=True):
                if old is None:  # a gradient that is not needed
                    continue
                assert old.shape == new.shape
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(step):
    recording = Recording()
    with recording:
        step()
    return recording


class StepMemory(TorchDispatchMode):
    """Weak references to the memory that a step reads and has not allocated itself."""

    def __init__(self):
        super().__init__()
        self.read, self._allocated = set(), set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        inputs = _storages((args, kwargs))
        result = operation(*args, **(kwargs or {}))
        self.read |= inputs - self._allocated
        self._allocated |= _storages(result) - inputs
        return result


def _storages(tree):
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return {StorageWeakRef(tensor.untyped_storage()) for tensor in tensors}


class MemoryCheck:
    """Calls a step again in place of a replay, unless a replay would read freed memory."""

    def __init__(self, step):
        self._step, self._memory = step, StepMemory()
        with self._memory:
            step()

    def replay(self):
        assert not any(storage.expired() for storage in self._memory.read), "the memory was freed"
        self._step()
