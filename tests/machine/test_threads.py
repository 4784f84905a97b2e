"""Threads adapt to the cores that other programs leave free, unless a number is requested."""

import os

import pytest
import torch

from tfm.machine import compute, cpu
from tfm.machine.compute import ComputeThreads, one_thread, oversubscription
from tfm.machine.cpu import CpuTimes, read_cpu_times


@pytest.fixture(autouse=True)
def restore_num_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A simulated machine, whose time passes in `run` only."""

    def __init__(self, monkeypatch, num_cores):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(compute, "num_cores", lambda: num_cores)
        monkeypatch.setattr(compute.time, "monotonic", lambda: self.now)
        self.lines = []
        monkeypatch.setattr(compute, "say", self.lines.append)
        monkeypatch.setattr(compute, "read_cpu_times", self.times)
        torch.set_num_threads(num_cores)
        self.num_cores = num_cores
        self.now = self.process = self.idle = 0.0

    def times(self):
        return CpuTimes(wall=self.now, process=self.process, idle=self.idle)

    def run(self, seconds, *, other_threads):
        """Run this process beside a number of threads of other programs."""
        num_running = torch.get_num_threads() + other_threads
        share = min(1.0, self.num_cores / num_running)  # the scheduler is fair
        self.now += seconds
        self.process += seconds * torch.get_num_threads() * share
        self.idle += seconds * max(0.0, self.num_cores - num_running)


@pytest.fixture
def new_machine(monkeypatch):
    return lambda num_cores: Machine(monkeypatch, num_cores)


@pytest.mark.parametrize(
    ("num_cores", "other_threads", "expected"),
    [(2, 0.2, 2), (2, 1, 1), (2, 7, 1), (8, 0.3, 8), (8, 3, 5), (16, 8, 8)],
)
def test_threads_leave_cores_to_other_programs(new_machine, num_cores, other_threads, expected):
    machine = new_machine(num_cores)
    compute_threads = ComputeThreads(None)
    for _ in range(6):
        machine.run(2.5, other_threads=other_threads)
        compute_threads.adapt()
    assert torch.get_num_threads() == expected
    # All threads return when the other programs end.
    for _ in range(8):
        machine.run(2.5, other_threads=0)
        compute_threads.adapt()
    assert torch.get_num_threads() == num_cores


def test_only_the_first_change_is_reported(new_machine):
    machine = new_machine(2)
    compute_threads = ComputeThreads(None)
    for other_threads in (1, 0, 1, 0):
        machine.run(3, other_threads=other_threads)
        compute_threads.adapt()
    [line] = machine.lines
    assert "computing with 1 of 2 threads" in line
    assert "--threads 2 keeps all of them" in line


@pytest.mark.parametrize(
    ("requested", "variable", "num_processes", "expected"),
    [(4, None, 1, 4), (4, "3", 2, 2), (None, "3", 1, 3), (None, None, 2, 2), (1, None, 4, 1)],
)
def test_a_requested_number_of_threads_is_fixed(
    new_machine, monkeypatch, requested, variable, num_processes, expected
):
    machine = new_machine(4)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        torch.set_num_threads(int(variable))  # as torch does when it is loaded
    compute_threads = ComputeThreads(requested, num_processes=num_processes)
    assert torch.get_num_threads() == expected
    for _ in range(3):
        machine.run(3, other_threads=4)
        compute_threads.adapt()
    assert torch.get_num_threads() == expected
    assert machine.lines == []


def test_a_block_with_one_thread_restores_their_number():
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(read_cpu_times() is None, reason="needs Linux")
def test_cpu_times_advance():
    before = read_cpu_times()
    while read_cpu_times().process < before.process + 0.05:
        pass
    after = read_cpu_times()
    assert after.wall - before.wall >= 0.04
    cores = len(os.sched_getaffinity(0))
    assert 0 <= after.idle - before.idle <= cores * (after.wall - before.wall) + 0.1


def test_without_proc_there_are_no_cpu_times(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "_PROC", tmp_path)
    assert read_cpu_times() is None


@pytest.mark.parametrize(
    ("device", "threads", "processes", "shared"),
    [("cpu", None, 1, None), ("cpu", 2, 2, None), ("cpu", 3, 1, "3 threads"),
     ("cpu", None, 3, "3 processes"), ("cuda", 3, 3, None)],
)  # fmt: skip
def test_more_threads_or_processes_than_cores_are_warned_of(
    monkeypatch, device, threads, processes, shared
):
    monkeypatch.setattr("tfm.machine.compute.num_cores", lambda: 2)
    warning = oversubscription(torch.device(device), threads, num_processes=processes)
    assert (warning is None) == (shared is None)
    assert shared is None or f"{shared} share the 2 cores" in warning
