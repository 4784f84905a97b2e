"""oneDNN multiplies fp32 matrices only on CPUs where it is faster, and only if it is exact."""

import pytest
import torch

from tfm.device import matmul
from tfm.device.cpu import Cpu
from tfm.device.matmul import choose_fp32_library, uses_onednn

MATMUL = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def restore_precision():
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "none"
    yield
    MATMUL.fp32_precision = before


@pytest.mark.parametrize(
    ("vendor", "flags", "error", "expected"),
    [
        ("AuthenticAMD", {"avx2", "avx512f"}, 1e-6, True),
        ("AuthenticAMD", {"avx2", "avx512f"}, 1e-2, False),  # it multiplies in bf16
        ("AuthenticAMD", {"avx2"}, 1e-6, False),  # torch would use MKL all the same
        ("GenuineIntel", {"avx2", "avx512f"}, 1e-6, False),
        ("", set(), 1e-6, False),
    ],
)
def test_onednn_is_used_where_mkl_is_slow_if_it_is_exact(
    monkeypatch, vendor, flags, error, expected
):
    cpu = Cpu(model="a CPU", vendor=vendor, flags=frozenset(flags))
    monkeypatch.setattr(matmul, "this_cpu", lambda: cpu)
    monkeypatch.setattr(matmul, "_error", lambda: error)
    choose_fp32_library()
    assert uses_onednn() == expected


def test_default_products_are_exact():
    assert matmul._error() < matmul._MAX_ERROR
