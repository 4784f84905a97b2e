"""tfm doctor: what could go wrong on this machine, before it does.

The checks that need torch run in other processes, so that a torch that is broken, crashes or hangs
is a finding, and hides no other.
"""

import errno
import json
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from rich.filesize import decimal

from tfm.disk.files import atomic_directory, existing_parent
from tfm.disk.lock import lock_folder
from tfm.disk.paths import DATA_ROOT, RUNS_ROOT
from tfm.errors import DISTRIBUTION, install_command
from tfm.machine import cpu
from tfm.machine.search_path import same_search_path

Level = Literal["ok", "warning", "problem"]
Findings = Iterator["Finding"]

_LOW_MEMORY_BYTES = 2 << 30
_FULL_DISK_BYTES, _LOW_DISK_BYTES = 100 << 20, 2 << 30
_PROBE_BYTES = 1 << 20
_TORCH_SECONDS = 120
_EXTRA = re.compile(r'extra == "([\w-]+)"')
_FOR_DEVELOPERS = ("dev", "docs")  # extras


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    message: str
    level: Level = "ok"
    remedy: str = ""  # what to do, unless all is well

    @classmethod
    def of(
        cls, check: str, message: str, *, is_well: bool, remedy: str, level: Level = "warning"
    ) -> "Finding":
        """Return a finding that is "ok" if all is well, or else has this level and remedy."""
        return cls(check, message) if is_well else cls(check, message, level, remedy)


def diagnose() -> Findings:
    """Check this machine, the working folder and what is installed, in a few seconds."""
    for check in (
        check_python,
        check_packages,
        check_cpu,
        check_memory,
        check_disks,
        check_files,
        check_ctranslate2,
        check_torch,
        check_processes,
    ):
        try:
            yield from check()
        except Exception as error:  # a failed check is a finding, and hides no other
            message = f"cannot be checked: {type(error).__name__}: {error}"
            yield Finding(check.__name__.removeprefix("check_"), message, "problem")


def check_python() -> Findings:
    """Report the versions of Python and the system; only Linux x86_64 is tested."""
    system = f"{platform.system()} {platform.machine()}"
    note = "" if system == "Linux x86_64" else ", which is untested"
    yield Finding("python", f"{platform.python_version()} on {system}{note}")


def check_packages() -> Findings:
    """Compare the installed packages with the requirements of tfm and its extras."""
    by_extra: dict[str, list[Requirement]] = {}
    with suppress(metadata.PackageNotFoundError):
        for each in map(Requirement, metadata.requires(DISTRIBUTION) or []):
            found = _EXTRA.search(str(each.marker))
            extra = found[1] if found else ""
            of_extra = by_extra.setdefault(extra, [])
            if _applies(each, extra):
                of_extra.append(each)
    if not (needed := by_extra.pop("", [])):
        message = f"{DISTRIBUTION} is not installed by pip: versions are not checked"
        yield Finding("packages", message, "warning", "in the checkout, run pip install -e .")
        return
    wrong = [each for each in needed if not _is_complete(each)]
    message = _differences(wrong) or f"{len(needed)} needed, all there and new enough"
    remedy = shlex.join(["pip", "install", *map(str, wrong)])
    yield Finding.of("packages", message, is_well=not wrong, remedy=remedy, level="problem")
    extras = {name: each for name, each in by_extra.items() if name not in _FOR_DEVELOPERS}
    complete = [name for name, needed in extras.items() if all(map(_is_complete, needed))]
    for name, needed in extras.items():
        if old := [each for each in needed if _version(each) and not _is_new(each)]:
            message = f"{name}: {_differences(old)}"
            yield Finding("extras", message, "warning", install_command(name))
    others = ", ".join(name for name in extras if name not in complete)
    yield Finding("extras", f"installed: {', '.join(complete) or 'none'}; not: {others or 'none'}")


def _differences(requirements: list[Requirement]) -> str:
    return "; ".join(
        f"{each.name}{each.specifier} is needed, but {_version(each) or 'none'} is installed"
        for each in requirements
    )


def _version(requirement: Requirement) -> str | None:
    """Return the installed version of a package."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(requirement.name)
    return None


def _is_new(requirement: Requirement) -> bool:
    """Return whether a package is there, in a version that is new enough."""
    version = _version(requirement)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _is_complete(requirement: Requirement) -> bool:
    """Return whether a package is new enough, and so is everything that its extras need."""
    if not _is_new(requirement):
        return False
    of_extras = [
        each
        for extra in requirement.extras
        for each in map(Requirement, metadata.requires(requirement.name) or [])
        if _applies(each, extra) and not _applies(each, "")
    ]
    return all(map(_is_complete, of_extras))


def _applies(requirement: Requirement, extra: str) -> bool:
    """Return whether a package is needed here, by this Python and system, for an extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def check_cpu() -> Findings:
    """Report the CPU, the cores for this process, and the fast instruction sets."""
    this, cores = cpu.this_cpu(), cpu.num_cores()
    widest = "AVX-512" if this.has_avx512 else "AVX2" if "avx2" in this.flags else None
    units = [widest, "bf16" if this.multiplies_bf16 else None, "int8" if this.has_int8 else None]
    names = ", ".join(filter(None, units)) or "no fast instructions"
    counted = f"{cores} core{'s' if cores > 1 else ''} for this process"
    yield Finding("cpu", f"{this.model}, {counted}, {names}")


def check_memory() -> Findings:
    """Compare the memory that is available with what a small model needs."""
    if (available := cpu.available_memory_bytes()) is None:
        yield Finding("memory", "this system does not tell")
        return
    message = f"{decimal(available)} of {decimal(cpu.memory_bytes())} available"
    remedy = "stop other programs, or lower --max-tokens"
    yield Finding.of("memory", message, is_well=available >= _LOW_MEMORY_BYTES, remedy=remedy)


def check_disks() -> Findings:
    """Report the free space for datasets, runs and temporary files."""
    by_disk: dict[int, list[Path]] = {}
    for folder in (DATA_ROOT, RUNS_ROOT, Path(tempfile.gettempdir())):
        parent = existing_parent(folder)
        if parent.exists():  # check_files reports a link to nothing
            by_disk.setdefault(parent.stat().st_dev, []).append(folder)
    for folders in by_disk.values():
        free = shutil.disk_usage(existing_parent(folders[0])).free
        message = f"{decimal(free)} free for {', '.join(map(str, folders))}"
        level: Level = "warning" if free >= _FULL_DISK_BYTES else "problem"
        remedy = "delete old checkpoints, or use another disk"
        yield Finding.of(
            "disk", message, is_well=free >= _LOW_DISK_BYTES, remedy=remedy, level=level
        )


def check_files() -> Findings:
    """Test writing, locking, renaming and deleting in the folder of runs."""
    folder = existing_parent(RUNS_ROOT)
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".tfm-doctor-", dir=folder) as probe,
            lock_folder(Path(probe)),
            atomic_directory(Path(probe) / "checkpoint") as saved,
        ):
            (saved / "weights").write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        is_full = error.errno == errno.ENOSPC
        remedy = "free some space" if is_full else "run tfm in a folder that you can write to"
        message = f"{folder.absolute()}: cannot save a checkpoint: {error.strerror}"
        yield Finding("files", message, "problem", remedy)
    else:
        yield Finding("files", f"{folder.absolute()}: files can be saved and renamed")


def check_ctranslate2() -> Findings:
    """Report whether tfm serve can compute with CTranslate2."""
    from tfm.translation.ctranslate2_files import package_problem

    problem = package_problem()
    found = "for tfm serve on CPUs in fp32, and for --engine ctranslate2"
    yield Finding(
        "ctranslate2", found if problem is None else f"torch is the only engine: {problem}"
    )


def check_torch() -> Findings:
    """Check torch, the devices and their arithmetic."""
    return _in_process("torch")


def check_processes() -> Findings:
    """Let two processes meet over each network library that runs use."""
    return _in_process("processes")


def _in_process(check: str) -> Findings:
    """Yield the findings that a check with torch prints, and how its process ended if it failed."""
    with same_search_path():
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "tfm.applications.doctor.torch_checks", check],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        out, err = process.communicate(timeout=_TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"no answer within {_TORCH_SECONDS} s"
    for line in out.splitlines():
        yield Finding(**json.loads(line))
    if code := process.returncode:
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reason = [ending, *err.strip().splitlines()][-1]
        remedy = "reinstall torch for this machine: see https://pytorch.org/get-started"
        yield Finding(check, f"{check} failed: {reason}", "problem", remedy)
