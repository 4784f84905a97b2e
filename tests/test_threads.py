"""As many threads compute as cores are free for them; a number that is asked for stays."""

import os

import pytest
import torch

from tfm.device import threads
from tfm.device.threads import ComputeThreads, CpuTimes, read_cpu_times


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """Cores that pass the time as a test says."""

    def __init__(self, monkeypatch, num_cores):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(threads, "num_cores", lambda: num_cores)
        monkeypatch.setattr(threads.time, "monotonic", lambda: self.now)
        self.lines = []
        monkeypatch.setattr(threads, "say", self.lines.append)
        torch.set_num_threads(num_cores)
        self.num_cores = num_cores
        self.now = self.own = self.idle = 0.0

    def times(self):
        return CpuTimes(wall=self.now, own=self.own, idle=self.idle)

    def go_on(self, seconds, *, others):
        """Let other programs use some cores, and this process as many as it has threads for."""
        wanted = torch.get_num_threads() + others
        share = min(1.0, self.num_cores / wanted)  # each gets as much as each other
        self.now += seconds
        self.own += seconds * torch.get_num_threads() * share
        self.idle += seconds * max(0.0, self.num_cores - wanted)


@pytest.fixture
def machine(monkeypatch):
    return lambda num_cores: Machine(monkeypatch, num_cores)


@pytest.mark.parametrize(
    ("num_cores", "others", "expected"),
    [
        (2, 0, 2),
        (2, 0.2, 2),
        (2, 1, 1),
        (2, 2, 1),
        (2, 7, 1),
        (4, 1, 3),
        (4, 2, 2),
        (8, 0.3, 8),
        (8, 1, 7),
        (8, 3, 5),
        (16, 8, 8),
    ],
)
def test_programs_that_compute_beside_it_get_cores_of_their_own(
    machine, num_cores, others, expected
):
    there = machine(num_cores)
    computing = ComputeThreads(None, read_times=there.times)
    for _ in range(6):
        there.go_on(2.5, others=others)
        computing.adapt()
    assert torch.get_num_threads() == expected
    # And no more than that: they are given back when the others are done.
    for _ in range(8):
        there.go_on(2.5, others=0)
        computing.adapt()
    assert torch.get_num_threads() == num_cores


def test_the_first_change_is_said_and_no_other(machine):
    there = machine(2)
    computing = ComputeThreads(None, read_times=there.times)
    for others in (1, 0, 1, 0):
        there.go_on(3, others=others)
        computing.adapt()
    [line] = there.lines
    assert "computing with 1 of 2 threads" in line
    assert "--threads 2 keeps all of them" in line


def test_moments_are_too_short_to_tell(machine):
    there = machine(2)
    computing = ComputeThreads(None, read_times=there.times)
    there.go_on(0.5, others=3)
    computing.adapt()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("asked", "variable", "num_processes", "expected"),
    [(4, None, 1, 4), (4, "3", 2, 2), (None, "3", 1, 3), (None, None, 2, 2), (1, None, 4, 1)],
)
def test_a_number_that_is_asked_for_stays(
    machine, monkeypatch, asked, variable, num_processes, expected
):
    there = machine(4)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        torch.set_num_threads(int(variable))  # as torch does when it is loaded
    computing = ComputeThreads(asked, num_processes=num_processes, read_times=there.times)
    assert torch.get_num_threads() == expected
    for _ in range(3):
        there.go_on(3, others=4)
        computing.adapt()
    assert torch.get_num_threads() == expected
    assert there.lines == []


def test_a_quota_of_fewer_cores_limits_threads(machine, monkeypatch):
    there = machine(8)
    monkeypatch.setattr(threads, "num_cores", lambda: 3)
    ComputeThreads(None, read_times=there.times)
    assert torch.get_num_threads() == 3


def test_a_system_that_tells_nothing_leaves_all_threads(machine):
    there = machine(2)
    computing = ComputeThreads(None, read_times=lambda: None)
    there.go_on(9, others=2)
    computing.adapt()
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not threads._STAT.is_file(), reason="needs Linux")
def test_times_of_this_process_and_its_cores_pass():
    before = read_cpu_times()
    while read_cpu_times().own < before.own + 0.05:
        pass
    after = read_cpu_times()
    assert after.wall - before.wall >= 0.04
    cores = len(os.sched_getaffinity(0))
    assert 0 <= after.idle - before.idle <= cores * (after.wall - before.wall) + 0.1


def test_without_proc_there_are_no_times(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "_STAT", tmp_path / "stat")
    assert read_cpu_times() is None
