"""The script that spends fifteen minutes of a machine with a GPU, tried on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import gpu_session
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_session.py"


def run(folder, *arguments):
    command = [sys.executable, SCRIPT, *arguments, "--dry-run", "--session", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    lines = map(json.loads, (folder / "work/results/results.jsonl").read_text().splitlines())
    return done, {line["step"]: line for line in lines}


def test_a_dry_run_computes_every_step_and_resumes_the_training(tmp_path):
    done, results = run(tmp_path, "all")
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    steps = [name for call in gpu_session.CALLS.values() for group in call for name in group]
    assert [*results] == steps
    halves = [results[f"{part} of the training"]["steps"] for part in ("half", "rest")]
    assert halves[1] == 2 * halves[0]
    assert len((tmp_path / "work/results/test.en").read_text().splitlines()) == 20
    carried = results["carried"]["bytes"]
    assert {"losses.json", "alignment/jaen.gold", "kyoto/bin/train.ja.tokens.npy"} <= {*carried}
    assert not {"kyoto/train.ja", "kyoto/seen.safetensors"} & {*carried}
    changes = [verdict for each in results.values() for verdict in each.get("verdicts", ())]
    assert {verdict.split()[0] for verdict in changes} <= {"accept", "reject"}
    assert len(changes) == 7


def test_nothing_starts_when_it_is_too_late(tmp_path):
    done, results = run(tmp_path, "second", "--spent", str(gpu_session.LAST_START))
    assert done.returncode == 1
    assert {each["error"] for each in results.values()} == {"not started: it is too late"}


@pytest.mark.parametrize(("mib", "fits"), [(0, True), (gpu_session.MAX_MIB, False)])
def test_what_is_carried_must_not_be_too_large(tmp_path, mib, fits):
    session = gpu_session.Session(tmp_path, tmp_path, is_dry=True)
    session.carried.mkdir()
    with (session.carried / "wheel").open("wb") as file:
        file.truncate(mib << 20)
    assert gpu_session.measure_carried(session)["ok"] == fits


def test_a_step_ends_at_its_limit_with_the_processes_that_it_has_started(tmp_path, monkeypatch):
    session = gpu_session.Session(tmp_path, tmp_path)
    session.results.mkdir(parents=True)
    endless = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: pass'])"
    monkeypatch.setattr(sys, "argv", ["-c", endless])
    found = gpu_session.in_process(session, "endless", 2)
    assert found == {"ok": False, "error": "more than 2 s"}
