"""Times of work on a device."""

import time

import torch

from tfm.training.progress import DeviceClock

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_clock_tells_the_time_from_mark_to_mark(monkeypatch):
    times = iter([10.0, 10.5, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = DeviceClock(CPU)
    for _ in range(3):
        clock.mark()
    assert clock.seconds() == [0.5, 1.5]


def test_the_clock_of_a_gpu_waits_for_its_last_mark(monkeypatch):
    calls = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            self.milliseconds = 500.0 * len(calls)
            calls.append("record")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, end):
            assert calls[-1] == "wait"
            return end.milliseconds - self.milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = DeviceClock(GPU)
    for _ in range(3):
        clock.mark()
    assert calls == ["record"] * 3
    assert clock.seconds() == [0.5, 0.5]
