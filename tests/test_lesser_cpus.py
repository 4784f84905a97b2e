"""The tests of what a CPU computes, run again as on CPUs with fewer units than this one has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfm.device.cpu import this_cpu

HERE = Path(__file__).parent
# Of units that some CPUs with vectors of a certain width have.
UNITS = ["test_cpu_inference.py", "test_verification.py"]
FILES = [
    *UNITS,
    "test_selection.py",
    "test_cpu_backend.py",
    "test_compute.py",
    "test_matmul.py",
    "test_sentence_attention.py",
]
# What limits oneDNN, torch's own loops, and MKL.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
CPUS = {
    "AVX2": (FILES, {**AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "AVX2 with VNNI": (UNITS, {**AVX2, "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}),
    "AVX-512 without VNNI": (UNITS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
}
# As a torch for a Mac or an Arm machine, which has neither library.
WITHOUT_LIBRARIES = """
import sys

import pytest

from tfm.backends import cpu_inference
from tfm.backends import cpu

for name in ("_REORDER", "_MULTIPLY", "_REORDER_FOR_MKL", "_MULTIPLY_BY_MKL"):
    setattr(cpu_inference, name, None)
cpu_inference._HAS_MKL = cpu_inference.HAS_ONEDNN = cpu_inference.HAS_INT8 = False
cpu._FUSED_LINEAR = None
sys.exit(pytest.main(sys.argv[1:]))
"""


def units():
    """What this CPU has that matters to which operations are chosen."""
    cpu = this_cpu.__wrapped__()
    return {name for name in ("avx512", "amx", "bf16", "int8") if getattr(cpu, f"has_{name}")}


def run_tests(command, files, **environment):
    """Run test files in a new process; returns the line that counts outcomes.

    The one test that trains a model first is left out.
    """
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "not a_model_whose"]
    ended = subprocess.run(
        [*command, *options, *(HERE / name for name in files)],
        env={**os.environ, **environment},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", CPUS)
def test_what_a_cpu_computes_is_right_on_lesser_ones(name, monkeypatch):
    files, limits = CPUS[name]
    own = units()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limits["ONEDNN_MAX_CPU_ISA"])
    if not units() < own:
        pytest.skip(f"this CPU has no more units than one with {name}")
    assert " passed" in run_tests([sys.executable, "-m", "pytest"], files, **limits)


def test_what_a_cpu_computes_is_right_without_onednn_and_mkl():
    assert " passed" in run_tests([sys.executable, "-c", WITHOUT_LIBRARIES], FILES)
