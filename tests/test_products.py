"""What multiplies fp32 matrices: oneDNN only where it pays, and only if it is exact."""

import pytest
import torch

from tfm.runtime import products
from tfm.runtime.products import cpu_info, multiplies_by_onednn, multiply_fast

MATMUL = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def as_before():
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "none"
    yield
    MATMUL.fp32_precision = before


@pytest.mark.parametrize(
    ("vendor", "error", "taken"),
    [
        ("AuthenticAMD", 1e-6, True),
        ("AuthenticAMD", 1e-2, False),  # it multiplies in bf16
        ("GenuineIntel", 1e-6, False),
        ("", 1e-6, False),
    ],
)
def test_onednn_multiplies_where_mkl_is_slow_and_it_is_exact(monkeypatch, vendor, error, taken):
    monkeypatch.setattr(products, "cpu_info", lambda name: vendor)
    monkeypatch.setattr(products, "_error", lambda: error)
    multiply_fast()
    assert multiplies_by_onednn() == taken


def test_products_as_they_come_are_those_of_fp32():
    assert products._error() < products._MOST_ERROR


def test_what_is_not_said_of_a_cpu_is_empty():
    assert cpu_info("no such name") == ""
