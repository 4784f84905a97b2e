"""The script that spends fifteen minutes of a machine with a GPU, tried on a CPU."""

import json
import subprocess
import sys

import gpu_session


def run(folder, *arguments):
    command = [sys.executable, gpu_session.__file__, *arguments, "--dry-run", "--session", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    lines = map(json.loads, (folder / "work/results/results.jsonl").read_text().splitlines())
    return done, {line["step"]: line for line in lines}


def test_a_dry_run_computes_every_step_and_resumes_the_training(tmp_path):
    done, results = run(tmp_path, "all")
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    assert [*results] == [name for call in gpu_session.CALLS.values() for x in call for name in x]
    half, whole = (results[f"{part} of the training"]["steps"] for part in ("half", "rest"))
    assert whole == 2 * half
    names = {"losses.json", "kyoto/bin/train.ja.tokens.npy", "kyoto/train.ja"}
    assert names - {*results["carried"]["bytes"]} == {"kyoto/train.ja"}


def test_nothing_starts_when_it_is_too_late(tmp_path):
    done, results = run(tmp_path, "second", "--spent", str(gpu_session.LAST_START))
    assert done.returncode == 1
    assert {each["error"] for each in results.values()} == {"not started: it is too late"}


def test_a_step_ends_at_its_limit_with_the_processes_that_it_has_started(tmp_path, monkeypatch):
    (session := gpu_session.Session(tmp_path, tmp_path)).results.mkdir(parents=True)
    endless = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: pass'])"
    monkeypatch.setattr(sys, "argv", ["-c", endless])
    assert gpu_session.in_process(session, "endless", 2)["error"] == "more than 2 s"
