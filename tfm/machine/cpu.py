"""This CPU: its model, its instruction sets and the number of cores available to this process."""

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfm.errors import UsageError

MAX_PER_CORE = 8  # threads or processes; more are a mistake and exhaust memory

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")

# Relevant instruction sets that oneDNN may use, by the value of ONEDNN_MAX_CPU_ISA. Values that are
# not listed exclude none of these.
_ISA_LIMITS = {
    "SSE41": "",
    "AVX": "",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx2 avx_vnni",
    "AVX2_VNNI_2": "avx2 avx_vnni avx_ne_convert",
    "AVX512_CORE": "avx2 avx512f",
    "AVX512_CORE_VNNI": "avx2 avx512f avx512_vnni",
    "AVX512_CORE_BF16": "avx2 avx512f avx512_vnni avx512_bf16",
    "AVX10_1_512": "avx2 avx512f avx512_vnni avx512_bf16",
    "AVX512_CORE_FP16": "avx2 avx512f avx512_vnni avx512_bf16",
}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A CPU, with the instruction sets that oneDNN may use, by their names in /proc/cpuinfo."""

    model: str
    vendor: str = ""  # of the CPUID instruction
    flags: frozenset[str] = frozenset()

    @property
    def has_avx512(self) -> bool:
        """Whether it has 512-bit vectors."""
        return "avx512f" in self.flags

    @property
    def multiplies_bf16(self) -> bool:
        """Whether it multiplies bf16 faster than fp32."""
        return not self.flags.isdisjoint({"avx512_bf16", "amx_bf16"})

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies, or at least converts, bf16 in hardware."""
        return not self.flags.isdisjoint({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})

    @property
    def multiplies_fp16(self) -> bool:
        """Whether it multiplies fp16, which others emulate."""
        return not self.flags.isdisjoint({"avx512_fp16", "amx_fp16"})

    @property
    def has_int8(self) -> bool:
        """Whether it adds 8-bit products in 32 bits, without intermediate 16-bit sums."""
        return not self.flags.isdisjoint({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Seconds of wall time, of CPU time of this process, and of idle time summed over its cores."""

    wall: float
    process: float
    idle: float

    def cores_since(self, earlier: "CpuTimes") -> float:
        """Return the number of cores that other programs have left to this process."""
        seconds = self.process - earlier.process + self.idle - earlier.idle
        return seconds / (self.wall - earlier.wall)


def read_cpu_times() -> CpuTimes | None:
    """Return the times of this process and its cores; None without /proc/stat."""
    if not (stat := _read(_PROC / "stat")):
        return None
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = map(str.split, stat.splitlines())
    # Columns: user, nice, system, idle, iowait, …
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in cores)
    idle = ticks / os.sysconf("SC_CLK_TCK")
    return CpuTimes(wall=time.monotonic(), process=time.process_time(), idle=idle)


@cache
def this_cpu() -> Cpu:
    """Return the CPU of this machine, limited to what ONEDNN_MAX_CPU_ISA allows."""
    info = _proc_info()
    flags = frozenset((info.get("flags") or info.get("Features") or "").split())
    limit = _ISA_LIMITS.get(os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper())
    return Cpu(
        model=info.get("model name") or platform.processor() or platform.machine(),
        vendor=info.get("vendor_id", ""),
        flags=flags if limit is None else flags.intersection(limit.split()),
    )


def num_cores() -> int:
    """Return the number of cores that affinity and the quotas of cgroups leave to this process.

    A quota of 2.5 cores counts as 2: a third thread would be throttled, and delay the others.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quotas = filter(None, map(_cgroup_quota, _cgroup_folders("cpu")))
    return max(1, min([cores, *map(int, quotas)]))


def chosen_threads(num_threads: int | None) -> int:
    """Return `num_threads`, or one thread per core if it is None."""
    if num_threads is not None and num_threads > MAX_PER_CORE * num_cores():
        raise UsageError(
            f"threads is {num_threads}, but must be at most {MAX_PER_CORE * num_cores()} on this "
            f"machine, {MAX_PER_CORE} per core"
        )
    return num_threads or num_cores()


def memory_bytes() -> int:
    """Return the memory of this machine, or the smallest limit of this process's cgroups."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _cgroup_folders("memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if limit.strip().isdecimal():  # v2 has "max" without a limit, v1 a huge number
            limits.append(int(limit))
    return min(limits)


def available_memory_bytes() -> int | None:
    """Return the memory that programs can still take, at most the limit of this process.

    None if the system does not tell.
    """
    fields = dict(line.split(":", 1) for line in _read(_PROC / "meminfo").splitlines())
    if "MemAvailable" not in fields:
        return None
    return min(int(fields["MemAvailable"].split()[0]) << 10, memory_bytes())


def _proc_info() -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo; none on other systems."""
    first_core = _read(_PROC / "cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups with a controller, and of their ancestors."""
    for line in _read(_PROC / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # cgroup v2 names no controllers. In a container, a group's own folder is the root.
        root = _CGROUP / controller if controllers else _CGROUP
        folder = root / group.lstrip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _cgroup_quota(folder: Path) -> float | None:
    """Return the quota of one cgroup, in cores; None if it has none."""
    v1_files = (folder / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    quota, period = _read(folder / "cpu.max").split() or [_read(path).strip() for path in v1_files]
    is_limited = period and quota not in ("", "max", "-1")
    return float(quota) / float(period) if is_limited else None


def _read(path: Path) -> str:
    """Return the text of a file; empty if this system does not have it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
