"""The units and cores of a CPU: from /proc, cgroups and ONEDNN_MAX_CPU_ISA."""

import os

import pytest

from tfm.errors import UsageError
from tfm.machine import cpu
from tfm.machine.cpu import chosen_threads, memory_bytes, num_cores, this_cpu

ZEN_3 = "fpu avx avx2 fma f16c bmi2"
ZEN_4 = f"{ZEN_3} avx512f avx512bw avx512_vnni avx512_bf16"
SKYLAKE = f"{ZEN_3} avx512f avx512bw"
SAPPHIRE_RAPIDS = f"{ZEN_4} avx_vnni amx_bf16 amx_tile amx_int8"
ALDER_LAKE = f"{ZEN_3} avx_vnni"
ARROW_LAKE = f"{ALDER_LAKE} avx_ne_convert"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Replace /proc and /sys/fs/cgroup by empty folders."""
    monkeypatch.setattr(cpu, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    this_cpu.cache_clear()
    yield tmp_path
    this_cpu.cache_clear()


@pytest.fixture
def set_affinity(monkeypatch):
    """Pretend that affinity allows a number of cores."""

    def set_to(number):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(number)), raising=False)

    return set_to


def write_cpuinfo(machine, flags, *, key="flags"):
    core = f"processor : 0\nvendor_id : Maker\nmodel name : A: CPU\n{key} : {flags}\n"
    (machine / "proc" / "cpuinfo").write_text(f"{core}\n{core.replace(': 0', ': 1')}")


def write_groups(machine, groups, files):
    (machine / "proc" / "self" / "cgroup").write_text(groups)
    for name, content in files.items():
        path = machine / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(
    ("flags", "limit", "avx512", "multiplies_bf16", "bf16", "int8"),
    [
        (ZEN_3, "", False, False, False, False),
        (ALDER_LAKE, "", False, False, False, True),
        (SKYLAKE, "", True, False, False, False),
        (ARROW_LAKE, "", False, False, True, True),
        (ZEN_4, "", True, True, True, True),
        (SAPPHIRE_RAPIDS, "", True, True, True, True),
        (SAPPHIRE_RAPIDS, "AVX2", False, False, False, False),
        (SAPPHIRE_RAPIDS, "avx2_vnni", False, False, False, True),
        (SAPPHIRE_RAPIDS, "AVX512_CORE", True, False, False, False),
        (SAPPHIRE_RAPIDS, "AVX512_CORE_VNNI", True, False, False, True),
        (SAPPHIRE_RAPIDS, "AVX512_CORE_BF16", True, True, True, True),
        (SAPPHIRE_RAPIDS, "DEFAULT", True, True, True, True),
        (ZEN_3, "AVX512_CORE_AMX", False, False, False, False),
    ],
)
def test_units_are_those_of_the_cpu_within_the_limit_of_onednn(
    machine, monkeypatch, flags, limit, avx512, multiplies_bf16, bf16, int8
):
    write_cpuinfo(machine, flags)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    found = this_cpu()
    assert (found.model, found.vendor) == ("A: CPU", "Maker")
    assert (found.has_avx512, found.multiplies_bf16) == (avx512, multiplies_bf16)
    assert (found.has_bf16, found.has_int8) == (bf16, int8)


def test_units_of_an_arm_cpu_are_read_from_its_features(machine):
    write_cpuinfo(machine, "fp asimd asimddp bf16", key="Features")
    assert this_cpu().has_bf16
    assert this_cpu().has_int8


def test_without_proc_a_cpu_has_a_model_and_no_units(machine):
    assert this_cpu().model
    assert not this_cpu().flags


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),
        ("0::/job\n", {"cpu.max": "max 100000", "job/cpu.max": "250000 100000"}, 2),
        ("0::/job/step\n", {"cpu.max": "400000 100000", "job/step/cpu.max": "max 100000"}, 4),
        ("0::/gone\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 8),
        (
            "4:memory:/job\n1:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "200000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("1:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "1\n", "cpu/cpu.cfs_period_us": "1\n"}, 8),
    ],
)
def test_cores_are_limited_by_affinity_and_by_the_smallest_quota(
    machine, set_affinity, groups, files, expected
):
    set_affinity(8)
    write_groups(machine, groups, files)
    assert num_cores() == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 1 << 34),
        ("0::/job\n", {"job/memory.max": "max\n"}, 1 << 34),
        ("0::/job\n", {"job/memory.max": "max\n", "memory.max": "5000\n"}, 5000),
        ("0::/job\n", {"job/memory.max": f"{1 << 40}\n"}, 1 << 34),
        ("4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "7000\n"}, 7000),
    ],
)
def test_memory_is_limited_by_the_smallest_limit(machine, monkeypatch, groups, files, expected):
    sizes = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 22}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    write_groups(machine, groups, files)
    assert memory_bytes() == expected


def test_a_number_of_threads_far_beyond_the_cores_is_refused(machine, set_affinity):
    set_affinity(2)
    assert [chosen_threads(number) for number in (None, 1, 16)] == [2, 1, 16]
    with pytest.raises(UsageError, match="threads is 17, but must be at most 16 on this machine"):
        chosen_threads(17)


def test_without_affinity_all_cores_count(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert num_cores() == 5
