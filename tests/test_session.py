"""Sessions on a GPU (benchmarks/gpu): time limits, results, and a dry run of every step."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks" / "gpu"
PRINT = 'print("a text"); print(\'{"summary": "fine"}\')'


@pytest.fixture(autouse=True)
def _scripts_on_the_path(monkeypatch):
    for folder in (SCRIPTS.parent, SCRIPTS):
        monkeypatch.syspath_prepend(folder)


def run_stage(*commands, out, seconds=60.0, limit=30.0, dry_run=False):
    import runner

    steps = [
        runner.Step(name=str(number), command=["-c", command], limit_seconds=limit)
        for number, command in enumerate(commands)
    ]
    environment = dict(os.environ)
    return runner.run_stage(
        steps, out, seconds=seconds, environment=environment, dry_run=dry_run
    ), runner.succeeded


def test_a_step_that_fails_does_not_stop_the_others(tmp_path):
    out = tmp_path / "a"
    outcomes, succeeded = run_stage(PRINT, "raise SystemExit('no kernel')", PRINT, out=out)
    assert [each.status for each in outcomes] == ["passed", "failed", "passed"]
    assert outcomes[1].exit_code == 1
    assert "no kernel" in outcomes[1].log_tail
    assert (outcomes[2].summary, outcomes[2].stdout) == ("fine", "a text")
    assert not succeeded(outcomes)
    assert succeeded(outcomes[::2])
    stored = json.loads(out.with_suffix(".json").read_text())["steps"]
    assert [each["status"] for each in stored] == ["passed", "failed", "passed"]
    assert "no kernel" in out.with_suffix(".log").read_text()


SLEEPING_CHILD = """
import subprocess, sys, time
command = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_step_over_its_limit_is_killed_with_its_children(tmp_path):
    started = time.monotonic()
    [slow, after], succeeded = run_stage(SLEEPING_CHILD, PRINT, out=tmp_path / "a", limit=2)
    assert time.monotonic() - started < 30
    assert (slow.status, after.status) == ("timed out", "passed")
    assert not succeeded([slow])
    assert not is_running(int(slow.stdout))


def test_steps_for_which_no_time_is_left_are_recorded(tmp_path):
    outcomes, succeeded = run_stage(PRINT, PRINT, out=tmp_path / "a", seconds=0.0)
    assert [each.status for each in outcomes] == ["no time left"] * 2
    assert not succeeded(outcomes)


KILLED = """
import os, sys
from pathlib import Path
import runner
steps = [
    runner.Step(name=name, command=["-c", command], limit_seconds=30)
    for name, command in (("quick", "pass"), ("slow", "import time; time.sleep(20)"))
]
runner.run_stage(steps, Path(sys.argv[1]), seconds=60, environment=os.environ, dry_run=False)
"""


def test_after_a_kill_the_results_so_far_are_whole(tmp_path):
    results = tmp_path / "a.json"
    path = os.pathsep.join([str(SCRIPTS), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "a"],
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    while not results.exists() and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    [step] = json.loads(results.read_text())["steps"]
    assert (step["name"], step["status"]) == ("quick", "passed")


def test_only_a_dry_run_may_leave_out_what_needs_a_gpu(tmp_path):
    needs_gpu = "print('{\"needs_gpu\": true}')"
    for dry_run, status in ((True, "needs a GPU"), (False, "passed")):
        outcomes, succeeded = run_stage(needs_gpu, out=tmp_path / "a", dry_run=dry_run)
        assert outcomes[0].status == status
        assert succeeded(outcomes)


TESTS = """
import pytest

def test_passes():
    pass

def test_fails():
    assert False

@pytest.mark.skip(reason="no GPU")
def test_skips():
    pass
"""


def test_skipped_tests_are_failures_on_a_gpu(tmp_path):
    import checks

    (tmp_path / "test_it.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", tmp_path, f"--junitxml={report}", tmp_path],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
    )
    passed, failed, skipped = checks.read_tests(report)
    assert passed == 1
    assert failed == ["test_it.test_fails"]
    assert skipped == ["test_it.test_skips: no GPU"]
    assert not checks.Check("skipped", len(skipped), 0).passed
    assert not checks.Check("difference", float("nan"), 1.0).passed


def test_synchronizations_are_counted_by_line_of_tfm(monkeypatch):
    import checks

    from tfm.training.loss import perplexity

    def warn(*_):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return 1.0

    monkeypatch.setattr("math.exp", warn)
    with checks.counted_synchronizations("cpu") as counts:
        perplexity(1.0)
        perplexity(1.0)
        warn()
    [(place, number), elsewhere] = counts.most_common()
    assert place.startswith("tfm/training/loss.py:")
    assert (number, elsewhere) == (2, ("elsewhere", 1))


def test_busy_time_counts_overlapping_kernels_once():
    import profiles

    assert profiles.busy_and_gaps([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == (4, [2])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    sys.path[:0] = [str(SCRIPTS)]
    import prepare

    folder = tmp_path_factory.mktemp("gpu") / "prepared"
    prepare.write_tiny(folder)
    sys.path.remove(str(SCRIPTS))
    return folder


@pytest.mark.parametrize("stage", ["a", "b", "c"])
def test_every_step_of_a_stage_runs_with_tiny_sizes_on_a_cpu(
    stage, prepared, tmp_path, monkeypatch, capfd, run
):
    import stages
    from common import Setup

    setup = Setup(prepared=prepared, scratch=tmp_path, dry_run=True)
    for step in stages.STAGES[stage](setup):
        command = [*map(str, step.command)]
        if step.only_on_gpu:
            continue
        if command[:2] == ["-m", "tfm"]:
            code, out, err = run(*command[2:])
            assert code == 0, f"{step.name}: {err}"
        elif "compare.py" in command[0]:
            environment = os.environ | {**step.environment}
            out = subprocess.check_output([sys.executable, *command], env=environment, text=True)
        else:
            monkeypatch.setattr(sys, "argv", command)
            runpy.run_path(command[0], run_name="__main__")
            out = capfd.readouterr().out
        last = out.splitlines()[-1]
        assert step.summarize(json.loads(last)) if last.startswith("{") else last.startswith("| ")


def test_a_session_ends_with_a_table_and_fails_with_its_steps(tmp_path, monkeypatch, capfd):
    import session
    import stages
    from runner import Step

    steps = [
        Step(name="good", command=["-c", PRINT], limit_seconds=20),
        Step(name="bad", command=["-c", "raise SystemExit(3)"], limit_seconds=20),
        Step(name="kernels", command=["-c", "pass"], limit_seconds=20, only_on_gpu=True),
    ]
    monkeypatch.setitem(stages.STAGES, "a", lambda setup: steps)
    monkeypatch.setattr(sys, "argv", ["session", "a", "--dry-run", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        session.main()
    assert stopped.value.code == 1
    rows = capfd.readouterr().out.splitlines()[-3:]
    assert [row.split(" | ")[1] for row in rows] == ["passed", "failed", "needs a GPU"]
    assert json.loads((tmp_path / "out" / "a.json").read_text())["steps"][1]["exit_code"] == 3


def test_a_session_without_prepared_files_is_a_usage_error(tmp_path):
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu_session.sh", "b", "--out", tmp_path],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--prepared is missing: write the folder with gpu_prepare.sh" in done.stderr
