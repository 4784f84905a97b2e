"""Every Triton kernel compiles for GPUs and fits their shared memory; no GPU is needed.

The test runs this file in a new process, because this one may use Triton's interpreter.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from tfm.backends import has_triton

# Limits of shared memory per program in bytes, by compute capability. Kernels for 8.0 also run on
# GPUs of 8.6 and 8.9, which have the least.
MAX_SHARED_MEMORY = {80: 99 * 1024, 90: 227 * 1024}
KERNELS = {
    "cross_entropy._cross_entropy_rows",
    "packed_attention_kernels.backward_keys",
    "packed_attention_kernels.backward_queries",
    "packed_attention_kernels.forward",
    "slot_attention._attend_slots",
    "token_blocks._reduce_blocks",
}


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
@pytest.mark.parametrize("capability", MAX_SHARED_MEMORY)
def test_every_kernel_compiles_and_fits_shared_memory(capability, tmp_path):
    search_path = os.pathsep.join(sys.path)  # tfm need not be installed
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": search_path}
    environment.pop("TRITON_INTERPRET", None)
    compiler = subprocess.run(
        [sys.executable, __file__, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert compiler.returncode == 0, compiler.stderr
    shared_memory = json.loads(compiler.stdout)
    assert set(shared_memory) == KERNELS
    assert max(shared_memory.values()) <= MAX_SHARED_MEMORY[capability], shared_memory


class Driver:
    """The properties of a GPU that Triton needs to compile for it."""

    def __init__(self, capability):
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self._target

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0


def compile_instead_of_launching(capability):
    """Return the largest shared memory in bytes of each kernel, filled as calls compile them."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(Driver(capability))
    run = JITFunction.run
    shared_memory = {}

    def compile_only(kernel, *inputs, **options):
        compiled = run(kernel, *inputs, **{**options, "warmup": True})
        assert compiled.asm["cubin"]
        name = f"{kernel.fn.__module__.split('.')[-1]}.{kernel.fn.__name__}"
        shared_memory[name] = max(compiled.metadata.shared, shared_memory.get(name, 0))

    JITFunction.run = compile_only
    return shared_memory


def call_kernels(dtype):
    call_packed_attention(dtype)
    call_cross_entropy(dtype)
    for num_hypotheses, width in [(5, 64), (64, 128), (5, 256)]:
        call_slot_attention(dtype, num_hypotheses, width)
    for block_size in (64, 74):
        call_token_blocks(dtype, block_size)


def call_packed_attention(dtype):
    from tfm.backends.packing import Spans
    from tfm.backends.triton.packed_attention import packed_attention

    projected = torch.zeros(70, 3, 2, 64, dtype=dtype, requires_grad=True)
    spans = Spans(*(torch.zeros(70, 2, dtype=torch.int32) for _ in range(2)))
    attended = packed_attention([projected], spans, dropout=0.1, seed=torch.tensor([1]))
    attended.sum().backward()


def call_cross_entropy(dtype):
    from tfm.backends.triton.cross_entropy import cross_entropy_

    targets = torch.zeros(4, dtype=torch.long)
    cross_entropy_(torch.zeros(4, 37_000, dtype=dtype), targets, smoothing=0.1)


def call_slot_attention(dtype, num_hypotheses, width):
    from tfm.backends.triton.slot_attention import slot_attention

    query = torch.zeros(3, num_hypotheses, 2, width, dtype=dtype)
    key, value = torch.zeros(3, 50 * num_hypotheses, 4, width, dtype=dtype).split(2, dim=2)
    ends = torch.ones(3, dtype=torch.long)
    slot_attention(query, key, value, ends)
    ancestors = torch.zeros(3, num_hypotheses, 50, dtype=torch.int16)
    slot_attention(query, key, value, ends, ancestors)


def call_token_blocks(dtype, block_size):
    from tfm.backends.triton.token_blocks import block_max_and_logsumexp

    block_max_and_logsumexp(torch.zeros(4, 500, block_size, dtype=dtype))


if __name__ == "__main__":
    shared_memory_of_kernels = compile_instead_of_launching(int(sys.argv[1]))
    for dtype in (torch.float32, torch.bfloat16):  # fp16 compiles like bf16
        call_kernels(dtype)
    print(json.dumps(shared_memory_of_kernels))
