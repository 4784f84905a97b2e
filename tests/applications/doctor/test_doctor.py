"""tfm doctor: each problem is a finding, and hides no other."""

import errno
import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tfm.applications.doctor import checks, torch_checks
from tfm.applications.doctor.checks import Finding


def levels(findings):
    return [(finding.check, finding.level) for finding in findings]


def test_this_machine_can_save_compute_and_meet(run, elsewhere):
    code, out, _ = run("doctor", "--json")
    findings = {each["check"]: each for each in json.loads(out)["findings"]}
    for name in ("python", "cpu", "files", "torch", "auto", "cpu fp32", "processes"):
        assert findings[name]["level"] == "ok", findings[name]
    worst = {each["level"] for each in findings.values()}
    assert code == ("problem" in worst)
    assert all(each["remedy"] for each in findings.values() if each["level"] != "ok")
    assert not [*elsewhere.iterdir()]


def test_findings_are_a_line_each_and_the_worst_is_the_exit_code(run, monkeypatch):
    found = [Finding("one", "good"), Finding("two", "odd", "warning", "look")]
    monkeypatch.setattr(checks, "diagnose", lambda: found)
    code, out, err = run("doctor")
    assert (code, err) == (0, "doctor: problems: 0, warnings: 1\n")
    assert [line.split() for line in out.splitlines()] == [
        ["ok", "one", "good"], ["warning", "two", "odd"], ["→", "look"]
    ]  # fmt: skip
    found.append(Finding("three", "bad", "problem", "leave"))
    assert run("doctor")[0] == 1


@pytest.mark.parametrize("has_gpu", [False, True])
def test_products_are_checked_on_the_cpu_and_on_a_gpu(monkeypatch, has_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch_checks, "check_choices", list)
    monkeypatch.setattr(
        torch_checks, "check_products", lambda device, _: [Finding(device.type, "good")]
    )
    found = [each.check for each in torch_checks.compute()]
    assert found[-1 - has_gpu :] == ["cpu", "cuda"][: 1 + has_gpu]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ImportError('libtorch.so: cannot open shared object')", "libtorch.so: cannot open"),
        ("import os; os.kill(os.getpid(), 4)", "killed by SIGILL"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
    ],
)
def test_a_broken_torch_is_a_finding(monkeypatch, tmp_path, body, reason):
    (tmp_path / "torch.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(checks, "_TORCH_SECONDS", 2 if "sleep" in body else 60)
    [finding] = checks.check_torch()
    assert (finding.check, finding.level) == ("torch", "problem")
    assert reason in finding.message


def test_a_check_that_fails_is_a_finding(monkeypatch):
    for name in ("check_torch", "check_processes"):
        monkeypatch.setattr(checks, name, lambda: iter([]))

    def check_cpu():
        raise ValueError("no such file")

    monkeypatch.setattr(checks, "check_cpu", check_cpu)
    found = {each.check: each for each in checks.diagnose()}
    assert found["cpu"].message == "cannot be checked: ValueError: no such file"
    assert found["cpu"].level == "problem"
    assert {"python", "memory", "files"} <= set(found)


@pytest.mark.parametrize(("free", "level"), [(0, "problem"), (10**9, "warning"), (10**13, "ok")])
def test_little_free_space_is_a_warning_and_none_a_problem(monkeypatch, free, level):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert {finding.level for finding in checks.check_disks()} == {level}


def test_a_folder_that_cannot_be_written_to_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.chdir("/proc")
    [finding] = checks.check_files()
    assert (finding.level, "/proc: cannot save" in finding.message) == ("problem", True)

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "atomic_directory", full)
    [finding] = checks.check_files()
    assert (finding.level, finding.remedy) == ("problem", "free some space")


def test_runs_that_are_a_link_to_no_folder_are_a_problem(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to("unmounted")
    assert levels(checks.check_files()) == [("files", "problem")]
    assert "runs" not in next(checks.check_disks()).message


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(checks.cpu, "available_memory_bytes", lambda: 10**8)
    assert levels(checks.check_memory()) == [("memory", "warning")]


def test_packages_are_compared_with_what_tfm_needs(monkeypatch):
    installed = {"torch": "2.10", "numpy": "2.0", "a": "1.0"}
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: [
            "torch>=2.11", "numpy>=1", "rich>=13",
            'a>=2; extra == "serve"', 'b; extra == "hf"', 'numpy; extra == "x"',
            'numpy[hf]; extra == "y"',  # numpy is there, but not what this extra of it needs
        ],
    )  # fmt: skip

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    finding, old, summary = checks.check_packages()
    assert finding.level == "problem"
    assert finding.message == (
        "torch>=2.11 is needed, but 2.10 is installed; rich>=13 is needed, but none is installed"
    )
    assert finding.remedy == "pip install 'torch>=2.11' 'rich>=13'"
    assert (old.level, old.message) == ("warning", "serve: a>=2 is needed, but 1.0 is installed")
    assert summary.message == "installed: x; not: serve, hf, y"
    installed.update(torch="2.13.0+cpu", rich="14")
    assert levels(checks.check_packages())[0] == ("packages", "ok")


def test_wrong_products_are_problems_and_the_warnings_of_auto_are_findings(monkeypatch):
    monkeypatch.setattr(torch_checks, "_PRODUCT_ERRORS", {torch.float32: 0.0})
    [finding] = torch_checks.check_products(torch.device("cpu"), [torch.float32])
    assert finding.level == "problem"
    wrong = lambda *_, notify, **__: notify("warning: bf16 is wrong") or "cpu"  # noqa: E731
    monkeypatch.setattr(torch_checks, "verified_compute", wrong)
    _, warning = torch_checks.check_choices()
    assert (warning.message, warning.level) == ("bf16 is wrong", "warning")


def test_processes_that_cannot_meet_are_a_problem(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no network\nmore")

    monkeypatch.setattr(torch_checks, "joined", fail)
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.setenv("MASTER_PORT", "1")
    [finding] = torch_checks.meet()
    assert (finding.level, "no network" in finding.message) == ("problem", True)
