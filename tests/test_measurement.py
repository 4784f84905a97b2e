"""What benchmarks read of a device."""

import re
from pathlib import Path

import pytest
import torch

from tfm.device.compute import Compute
from tfm.stages.bench import measurement
from tfm.stages.bench.measurement import (
    MatrixRate,
    environment,
    matrix_rates,
    peak_memory,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrix_products_have_a_rate(monkeypatch, dtype):
    monkeypatch.setattr(measurement, "_matrix_size", lambda device: 64)
    rates = matrix_rates(CPU, dtype)
    assert all(1e6 < rate < 1e15 for rate in rates)
    rate = MatrixRate.of(CPU, rates)
    assert min(rates) <= rate.median <= rate.best == max(rates)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone tells it")
def test_memory_is_counted_in_bytes():
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    memory = peak_memory(CPU)
    assert memory.process == pytest.approx(peak, rel=0.1)
    assert memory.device is None


def test_a_cpu_has_a_name():
    assert environment(Compute(CPU, torch.float32))["device"].strip()
