"""Launching several processes that end together; tiny programs take the place of a training."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from tfm.device.cpu import num_cores
from tfm.distributed.failures import FailedProcessError
from tfm.distributed.launch import launch
from tfm.distributed.layout import Layout
from tfm.errors import InterruptedRunError, UsageError

pytestmark = pytest.mark.usefixtures("handles_sighup")

# The start of all programs. `ready` waits until both processes have called it.
_START = """
import json, os, signal, sys, time
from pathlib import Path
from tfm.distributed.failures import report_failure
rank, here = int(os.environ["RANK"]), Path.cwd()
def ready():
    (here / f"ready{rank}").write_text(str(os.getpid()))
    while not all((here / f"ready{other}").exists() for other in (0, 1)):
        time.sleep(0.01)
    time.sleep(0.05)
    return [int((here / f"ready{other}").read_text()) for other in (0, 1)]
"""
# Saves and ends normally after a signal, as a training does.
_SAVE_AND_STOP = """
from tfm.distributed.interruption import StopRequests
with StopRequests() as stop:
    ready()
    while stop.received is None:
        time.sleep(0.01)
    (here / f"saved{rank}").write_text(str(stop.received))
"""


@pytest.fixture(autouse=True)
def work_dir(tmp_path, monkeypatch):
    """Return a working directory, and check that no temporary file is left."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "work"
    assert not list((tmp_path / "temporary").iterdir())


def program(text):
    return [sys.executable, "-c", _START + text]


def run(text, *, processes=2):
    return launch(Layout(local_size=processes), program(text))


def assert_all_gone(folder):
    """Check that no process that was ready is still running."""
    pids = [int(path.read_text()) for path in folder.glob("ready*")]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# --- environment


def test_each_process_knows_its_rank(work_dir, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    assert (
        run('(here / f"environment{rank}").write_text(json.dumps(dict(os.environ)))', processes=3)
        == 0
    )
    environments = [json.loads((work_dir / f"environment{rank}").read_text()) for rank in range(3)]
    assert [variables["LOCAL_RANK"] for variables in environments] == ["0", "1", "2"]
    assert {variables["WORLD_SIZE"] for variables in environments} == {"3"}
    assert {variables["MASTER_ADDR"] for variables in environments} == {"127.0.0.1"}
    num_threads = str(max(1, num_cores() // 3))
    assert {variables["OMP_NUM_THREADS"] for variables in environments} == {num_threads}
    assert dict(os.environ) == before


def test_the_number_of_threads_that_the_user_sets_is_kept(work_dir, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run('(here / f"threads{rank}").write_text(os.environ["OMP_NUM_THREADS"])')
    assert [path.read_text() for path in work_dir.iterdir()] == ["5", "5"]


def test_the_processes_can_communicate(capfd):
    text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([float(rank)])
dist.all_reduce(ranks)
assert ranks == 1
dist.destroy_process_group()
"""
    assert run(text) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("local_size", "num_gpus", "expected"), [(None, 3, 3), (2, 3, 2), (3, 3, 3)]
)
def test_each_gpu_has_a_process(monkeypatch, local_size, num_gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert Layout(local_size=local_size, device="cuda").num_local_processes() == expected


@pytest.mark.parametrize(("local_size", "num_gpus"), [(None, 0), (1, 0), (4, 3)])
def test_more_processes_than_gpus_are_refused(monkeypatch, local_size, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(UsageError, match="torch sees"):
        launch(Layout(local_size=local_size, device="cuda"), program("ready()"))


# --- failures


def test_a_killed_process_is_named_and_ends_the_others(work_dir, capfd):
    text = """
pids = ready()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
    with pytest.raises(FailedProcessError) as failed:
        run(text)
    pid = (work_dir / "ready1").read_text()
    assert str(failed.value) == (
        f"rank 1 (process {pid}) was killed by SIGKILL (out of memory?); "
        "run the same command again to resume from the last checkpoint"
    )
    assert failed.value.exit_code == 1
    assert_all_gone(work_dir)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_all_processes_is_shown_once(work_dir, capfd):
    text = """
ready()
report_failure("what and where: what to do", exit_code=2)
sys.exit(2)
"""
    with pytest.raises(FailedProcessError, match=r"^what and where: what to do$") as failed:
        run(text)
    assert failed.value.exit_code == 2
    assert capfd.readouterr() == ("", "")


def test_the_root_cause_is_shown_though_a_consequence_was_reported_first(work_dir):
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready()
if rank == 0:
    report_failure("rank 0 lost the others", is_consequence=True)
    sys.exit(1)
time.sleep(0.3)
report_failure("rank 1 is the cause")
sys.exit(1)
"""
    with pytest.raises(FailedProcessError, match=r"^rank 1 is the cause$"):
        run(text)


def test_the_traceback_of_a_bug_is_shown_once(work_dir, capfd, monkeypatch):
    (work_dir / "bug.py").write_text(
        "import sys\n"
        "import tfm.stages.quickstart\n"
        "from tfm.cli.main import main\n"
        "def fail(*args):\n"
        "    raise ZeroDivisionError('by 0')\n"
        "tfm.stages.quickstart.quickstart = fail\n"
        "sys.argv = ['tfm', 'quickstart']\n"
        "main()\n"
    )
    with pytest.raises(FailedProcessError, match=r"rank . .* a bug: ZeroDivisionError: by 0;"):
        launch(Layout(local_size=2), [sys.executable, "bug.py"])
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("Traceback") == err.count("ZeroDivisionError: by 0") == 1


# --- signals


def ask_to_stop(folder, *numbers):
    """Send signals to this process, one after the other, once both processes are ready."""

    def send():
        while len(list(folder.glob("ready*"))) < 2:
            time.sleep(0.01)
        for number in numbers:
            time.sleep(0.2)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_the_agent_of_torch_2_11_runs_the_processes(work_dir, monkeypatch):
    class Agent(LocalElasticAgent):
        def __init__(self, spec, logs_specs, exit_barrier_timeout=300):
            super().__init__(spec, logs_specs, exit_barrier_timeout=exit_barrier_timeout)

    monkeypatch.setattr("tfm.distributed.launch.LocalElasticAgent", Agent)
    assert run("ready()") == 0
    assert_all_gone(work_dir)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), (signal.SIGUSR1, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)],
)
def test_a_signal_makes_all_processes_save(work_dir, capfd, number, code):
    ask_to_stop(work_dir, number)
    assert run(_SAVE_AND_STOP) == code
    saved = [(work_dir / f"saved{rank}").read_text() for rank in (0, 1)]
    assert saved == [str(int(number))] * 2
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_is_forwarded_once(work_dir):
    """A second Ctrl-C would stop a process before it has saved."""
    text = """
count = 0
def note(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
ready()
time.sleep(1)
(here / f"saved{rank}").write_text(str(count))
"""
    ask_to_stop(work_dir, signal.SIGINT)
    assert run(text) == 130
    assert [(work_dir / f"saved{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


def test_a_second_ctrl_c_stops_at_once(work_dir):
    text = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
ready()
time.sleep(60)
"""
    ask_to_stop(work_dir, signal.SIGINT, signal.SIGINT)
    with pytest.raises(InterruptedRunError, match="stopped without saving") as stopped:
        run(text)
    assert stopped.value.exit_code == 130
    assert_all_gone(work_dir)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_signal_before_the_processes_handle_it_stops_them(work_dir, capfd, number, code):
    text = """
signal.signal(signal.SIGINT, signal.SIG_DFL)
ready()
time.sleep(60)
"""
    ask_to_stop(work_dir, number)
    with pytest.raises(InterruptedRunError, match="stopped before the run could save") as stopped:
        run(text)
    assert stopped.value.exit_code == code
    assert_all_gone(work_dir)
    assert capfd.readouterr() == ("", "")


def test_a_failure_while_saving_is_shown(work_dir):
    text = """
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
ready()
while not signals:
    time.sleep(0.01)
if rank == 0:
    report_failure("disk full")
sys.exit(1)
"""
    ask_to_stop(work_dir, signal.SIGTERM)
    with pytest.raises(FailedProcessError, match=r"^disk full$"):
        run(text)


_LAUNCH = """
import sys
from tfm.distributed.launch import launch
from tfm.device.cpu import num_cores
from tfm.distributed.layout import Layout
launch(Layout(local_size=2), [sys.executable, "-c", sys.argv[1]])
"""


def test_the_processes_save_and_end_if_their_launcher_is_killed(work_dir):
    text = "from tfm.distributed.interruption import stop_with_launcher\nstop_with_launcher()\n"
    command = [sys.executable, "-c", _LAUNCH, _START + text + _SAVE_AND_STOP]
    environment = os.environ | {"TMPDIR": str(work_dir)}
    with subprocess.Popen(command, env=environment) as launcher:
        deadline = time.monotonic() + 120
        while len(list(work_dir.glob("ready*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        launcher.kill()
    while len(list(work_dir.glob("saved*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(work_dir.glob("saved*"))) == 2


def test_torchrun_shows_a_failure_of_the_command_line_once(work_dir):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "tfm",
         "train", "--processes", "3"],
        env=os.environ | {"TMPDIR": str(work_dir)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    [root_cause] = re.findall(r"Root Cause.*", done.stderr, re.DOTALL)
    assert root_cause.count("torchrun has started 2 processes") == 1
    assert "tfm: " not in done.stderr
