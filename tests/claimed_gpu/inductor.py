"""Compile for a claimed H100 without running anything: torch.compile writes kernels, triton cubins.

The private names are those of the torch and the triton in constraints.txt.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock, patch

import torch
import triton
from claimed_gpu.claim import PROPERTIES, claimed_gpu
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, config
from torch._inductor.async_compile import _load_triton_kernel_from_source
from torch._inductor.fx_passes import fuse_attention, pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget

_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)
_LAUNCH = re.compile(r"\.run\(|extern_kernels\.\w+\(")
# What would compute on the device, measure it, or keep files.
_OFF = (
    "fx_graph_cache", "use_static_cuda_launcher", "joint_graph_constant_folding",
    "shape_padding", "triton.autotune_at_compile_time",
)  # fmt: skip
_compile = torch.compile


class Device(TorchDispatchMode):
    """A device on which nothing runs.

    Attributes:
        fake: The mode that makes its tensors.
        graphs: The code that Inductor wrote for each compiled graph.
        num_launches: The number of kernels until now, within graphs and outside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.graphs: list[str] = []
        self.num_launches = 0
        self._is_in_graph = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise, torch.compile compiles nothing under this mode

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        is_here = any(getattr(x, "is_cuda", False) for x in tree_leaves(found))
        has_kernel = not operation.is_view and "empty" not in operation._schema.name
        self.num_launches += is_here and has_kernel and not self._is_in_graph
        return found

    def copy(self, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor like x on a device, without values unless that is the CPU."""
        with self.fake:
            return x if device.type == "cpu" else torch.empty_like(x, device=device)

    def compile(self, function, **options):
        """Compile a function as `torch.compile` does; running it only counts its launches."""
        backend = partial(compile_fx.compile_fx, inner_compile=self._compile_graph)
        return _compile(function, backend=backend, **options)

    def _compile_graph(self, module, inputs, **options):
        def keep(_, code):
            self.graphs.append(code.value)
            return MagicMock(__file__="", partitions=[], key=None, runner=None)

        with patch.object(GraphLowering, "_compile_to_module_lines", keep):
            compile_fx.compile_fx_inner(module, inputs, **options)
        num_launches = len(_LAUNCH.findall(self.graphs[-1]))

        def run(arguments):
            self.num_launches += num_launches
            given = list(arguments)
            arguments.clear()
            with patch.object(self, "_is_in_graph", True):
                return module.forward(*given)

        run._boxed_call = True
        return run


@contextmanager
def fake_gpu() -> Iterator[Device]:
    """Claim a GPU whose tensors have no values, and for which functions are compiled."""
    device, nothing = Device(), lambda *_, **__: None
    target = {"get_current_target.return_value": GPUTarget("cuda", 90, 32)}
    triton.runtime.driver.set_active(MagicMock(**target))
    properties = {"get_device_properties": lambda _=None: PROPERTIES, "current_device": lambda: 0}
    with (
        claimed_gpu(MagicMock),
        patch.multiple(CudaInterface, **properties),
        # They trace patterns on the device, of which the layers have none.
        patch.object(fuse_attention, "_sfdp_init", nothing),
        patch.object(pad_mm, "_pad_mm_init", nothing),
        config.patch({"compile_threads": 1, **dict.fromkeys(_OFF, False)}),
        patch("torch._functorch.config.enable_autograd_cache", False),
        patch.object(FakeTensorMode, "avoid_device_init", True),
        patch.object(triton_helpers, "set_driver_to_gpu", nothing),
        patch("torch.compile", device.compile),
        device.fake,
        device,
    ):
        yield device


def binaries(
    graph: str, capability: int, folder: Path, num_warps: int | None = None
) -> Iterator[tuple[str, dict[str, int]]]:
    """Compile a graph's kernels with triton; yield the name of each binary and what it uses.

    These are the number of registers, and bytes of stack, shared and local memory.
    """
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [tool, "--dump-resource-usage", folder / "kernel.cubin"]
    for name, source in _KERNEL.findall(graph):
        source = re.sub(r"\bcc=90\b", f"cc={capability}", source)
        kernel = _load_triton_kernel_from_source(name, source)
        for settings in kernel.configs:
            settings.num_warps = num_warps or settings.num_warps
            command[-1].write_bytes(kernel._precompile_config(settings).kernel.asm["cubin"])
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found = re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text)
            yield name, {resource: int(value) for resource, value in found}
