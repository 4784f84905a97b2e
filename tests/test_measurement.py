"""What benchmarks read of a device."""

import re
from pathlib import Path

import pytest
import torch

from tfm.device.compute import Compute
from tfm.stages.bench import measurement
from tfm.stages.bench.measurement import (
    MatrixRate,
    StepClock,
    environment,
    matrix_rates,
    peak_memory,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_clock_tells_the_time_from_mark_to_mark(monkeypatch):
    times = iter([10.0, 10.5, 12.0])
    monkeypatch.setattr(measurement.time, "perf_counter", lambda: next(times))
    clock = StepClock(CPU)
    for _ in range(3):
        clock.mark()
    assert clock.seconds() == [0.5, 1.5]


def test_the_clock_of_a_gpu_waits_once_at_the_end(monkeypatch):
    calls = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            self.milliseconds = 500.0 * len(calls)
            calls.append("record")

        def elapsed_time(self, end):
            assert calls[-1] == "wait"
            return end.milliseconds - self.milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("wait"))
    clock = StepClock(GPU)
    for _ in range(3):
        clock.mark()
    assert calls == ["record"] * 3
    assert clock.seconds() == [0.5, 0.5]


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
