"""Repeat tests of backends and engines as on CPUs with fewer instruction sets, in new processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfm.machine.cpu import this_cpu

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
# Files that depend on units which only some CPUs of a vector width have.
UNIT_FILES = ["backends/test_inference_cpu.py", "backends/test_verification.py"]
BACKEND_FILES = [
    *UNIT_FILES,
    "backends/test_selection.py",
    "backends/test_training_cpu.py",
    "backends/test_sentence_attention.py",
]
# Limits for oneDNN, for torch's own loops, for MKL and for FBGEMM.
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
}
CPUS = {
    "AVX2": ([*BACKEND_FILES, "machine/test_compute.py"], {**AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "AVX2 with VNNI": (UNIT_FILES, {**AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}),
    "AVX-512 without VNNI": (UNIT_FILES, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "SSE4.1 with CTranslate2": (
        ["translation/test_engines.py"],
        {"CT2_FORCE_CPU_ISA": "GENERIC", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    ),
}
# Builds of torch for Macs and Arm machines have neither library.
WITHOUT_LIBRARIES = """
import sys
from types import SimpleNamespace

import pytest
import torch
from tfm.machine import cpu

cpu.this_cpu = lambda: cpu.Cpu(model="without bf16 units", flags=frozenset({"avx2"}))

from tfm.backends import products_cpu

products_cpu.HAS_MKL = products_cpu.HAS_ONEDNN = products_cpu.HAS_INT8 = False
torch.ops.mkl = torch.ops.mkldnn = torch.ops.quantized = SimpleNamespace()
del torch.quantize_per_channel
sys.exit(pytest.main(sys.argv[1:]))
"""


def find_units():
    """Return the units of this CPU on which the choice of operations depends."""
    cpu = this_cpu.__wrapped__()
    names = ("has_avx512", "multiplies_bf16", "has_bf16", "has_int8")
    return {name for name in names if getattr(cpu, name)}


def run_tests(command, files, **environment):
    """Run test files in a new process, and return the line that counts outcomes.

    Two tests that need a trained model are left out because they pretend to run on another CPU,
    beam search because it depends on the kind of model, but not on the units, and torch's compiler,
    which is for GPUs.
    """
    left_out = ("a_model_whose", "translating_in_bf16", "beam_search_equals", "compiled")
    chosen = " and ".join(f"not {each}" for each in left_out)
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", chosen]
    process = subprocess.run(
        [*command, *options, *(TESTS / name for name in files)],
        env={**os.environ, **environment},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", CPUS)
def test_results_are_right_on_cpus_with_fewer_units(name, monkeypatch):
    files, limits = CPUS[name]
    all_units = find_units()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limits["ONEDNN_MAX_CPU_ISA"])
    if not find_units() < all_units:
        pytest.skip(f"this CPU has no more units than {name}")
    assert " passed" in run_tests([sys.executable, "-m", "pytest"], files, **limits)


def test_results_are_right_without_onednn_and_mkl():
    assert " passed" in run_tests([sys.executable, "-c", WITHOUT_LIBRARIES], BACKEND_FILES)
