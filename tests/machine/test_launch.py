"""Launching several processes that end together; tiny programs take the place of a training."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest
import torch
from helpers import wait_until
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tfm.errors import UsageError
from tfm.machine.cpu import num_cores
from tfm.machine.interruption import RESUME, report_failure
from tfm.machine.launch import _root_cause
from tfm.machine.processes import Placement

# The command line, with another command in the processes.
LAUNCHER = """
import sys
from tfm.cli import main
from tfm.machine.launch import launch
from tfm.machine.processes import Placement
restarts, *command = sys.argv[1:]
placement = Placement(local_size=2, restarts=int(restarts))
main.app = lambda **_: sys.exit(launch(placement, command))
main.main()
"""
# The start of all programs. `ready` waits until both processes have called it.
START = """
import json, os, signal, sys, time
from pathlib import Path
from tfm import errors
from tfm.cli import main
from tfm.machine.interruption import StopRequests, cause_of_restart, end_process, report_failure
rank, here = int(os.environ["RANK"]), Path.cwd()
attempt = int((cause_of_restart() or "restart 0").split()[1])
(here / f"started{rank}-{attempt}").touch()
def ready():
    (here / f"partial{rank}").write_text(str(os.getpid()))
    (here / f"partial{rank}").rename(here / f"ready{rank}")
    while not all((here / f"ready{other}").exists() for other in (0, 1)):
        time.sleep(0.01)
    time.sleep(0.05)
def run(command):
    main.app = command
    main.main()
def save_and_stop(**_):  # after a signal, as a training does
    with StopRequests("stopping") as stop:
        ready()
        while stop.received is None:
            time.sleep(0.01)
        time.sleep(0.5)
        (here / f"saved{rank}").write_text(str(stop.received))
        raise errors.InterruptedRunError("saved", exit_code=stop.exit_code)
def fail(error, **_):
    ready()
    raise error
"""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What two processes do, what their launcher gets, and how it ends."""

    program: str
    before: str = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # in the launcher
    restarts: int = 0
    signals: tuple[int, ...] = ()  # that the launcher gets when both are ready
    code: int = 0
    stderr: str = ""  # a regular expression
    num_starts: int = 1
    saved: str | None = None  # by each process
    files: dict[str, str] = field(default_factory=dict)


KILL = """
if attempt < 2:
    ready()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
KILLED = r"rank 1 \(host .*, process PID1\) was killed by SIGKILL \(out of memory\?\)"
BUG = (
    r"Traceback \(most recent call last\):\n(  .*\n)+ZeroDivisionError: by 0\n"
    rf"tfm: rank . \(host .*, process .*\) hit a bug: ZeroDivisionError: by 0; {RESUME}\n"
)
STALL = """
if attempt == 0:
    ready()
    if rank == 1:
        end_process("rank 1 has stalled")
    end_process("rank 0 waited for others", is_consequence=True)
(here / f"cause{rank}").write_text(cause_of_restart())
"""
FAIL_WHILE_SAVING = """
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
ready()
while not signals:
    time.sleep(0.01)
end_process(["lost the others", "disk full"][rank], is_consequence=rank == 0)
"""
SAVE, SAVED = "run(save_and_stop)", "stopping\ntfm: saved\n"
UNHANDLED = "signal.signal(signal.SIGINT, signal.SIG_DFL)\nready()\ntime.sleep(60)"
IGNORED = "signal.signal(signal.{}, signal.SIG_IGN)"
THREADS = '(here / f"threads{rank}").write_text(os.environ["OMP_NUM_THREADS"])'
LOST_SAVE = rf"tfm: stopped before the run could save: {RESUME}\n"
TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def fails(error, **facts):
    """Return a scenario in which both processes fail with an error."""
    return Scenario(program=f"run(lambda **_: fail({error}))", **facts)


def threads(before, number):
    """Return a scenario in which both processes use a number of threads."""
    files = {f"threads{rank}": str(number) for rank in (0, 1)}
    return Scenario(program=THREADS, before=before, files=files)


SCENARIOS = {
    "cores are shared": threads(
        "os.environ.pop('OMP_NUM_THREADS', None)", max(1, num_cores() // 2)
    ),
    "threads of the user": threads("os.environ['OMP_NUM_THREADS'] = '5'", 5),
    "a killed process": Scenario(program=KILL, code=1, stderr=f"tfm: {KILLED}; {RESUME}\n"),
    "an error of both": fails(
        "errors.UsageError('where: what')", code=2, stderr="tfm: where: what\n"
    ),
    "a bug": fails("ZeroDivisionError('by 0')", code=1, stderr=BUG),
    "closed terminal": Scenario(program=SAVE, signals=(HUP,), stderr=SAVED, saved="1"),
    "Ctrl-C": Scenario(program=SAVE, signals=(INT,), code=130, stderr=SAVED, saved="2"),
    "Ctrl-C twice": Scenario(
        program=SAVE,
        signals=(INT, INT),
        code=130,
        stderr="stopping\ntfm: stopped without saving; .*\n",
    ),
    "nohup": Scenario(
        program="ready()\ntime.sleep(1)", before=IGNORED.format("SIGHUP"), signals=(HUP,)
    ),
    "Ctrl-C in the background": Scenario(
        program="ready()\ntime.sleep(1)", before=IGNORED.format("SIGINT"), signals=(INT,)
    ),
    "SIGTERM too early": Scenario(program=UNHANDLED, signals=(TERM,), code=1, stderr=LOST_SAVE),
    "Ctrl-C too early": Scenario(program=UNHANDLED, signals=(INT,), code=130, stderr=LOST_SAVE),
    "a failure while saving": Scenario(
        program=FAIL_WHILE_SAVING, signals=(TERM,), code=1, stderr="tfm: disk full\n"
    ),
    "one restart of two": Scenario(
        program=KILL, restarts=1, num_starts=2, code=1, stderr=f"tfm: {KILLED}; {RESUME}\n"
    ),
    "restarts until it succeeds": Scenario(program=KILL, restarts=3, num_starts=3),
    "the cause of a restart": Scenario(
        program=STALL,
        restarts=2,
        num_starts=2,
        files={f"cause{rank}": "restart 1 of 2: rank 1 has stalled" for rank in (0, 1)},
    ),
    "a mistake is not repeated": fails(
        "errors.UsageError('why')", restarts=2, code=2, stderr="tfm: why\n"
    ),
    "divergence is not repeated": fails(
        "errors.TrainingError('why')", restarts=2, code=1, stderr="tfm: why\n"
    ),
    "unequal ranks are": fails(
        "errors.UnequalRanksError('why')", restarts=2, num_starts=3, code=1, stderr="tfm: why\n"
    ),
    "a signal after a restart": Scenario(
        program=f"if attempt == 0: end_process('a failure before')\n{SAVE}",
        restarts=1,
        signals=(TERM,),
        num_starts=2,
        stderr=SAVED,
        saved="15",
    ),
}


@pytest.fixture(autouse=True)
def work_dir(tmp_path, monkeypatch):
    """Return a working directory, and check that no temporary file is left."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "work"
    assert not list((tmp_path / "temporary").iterdir())


@pytest.fixture
def start(work_dir, fork_python):
    """Start the launcher of a scenario in the working directory."""

    def start_launcher(scenario):
        command = [sys.executable, "-c", START + scenario.program]
        return fork_python(
            f"import os, signal, tempfile\nos.chdir({str(work_dir)!r})\n"
            f"tempfile.tempdir = {str(work_dir.parent / 'temporary')!r}\n"
            f"{scenario.before}\n{LAUNCHER}",
            *(scenario.restarts, *command),
        )

    return start_launcher


def wait_until_both(folder, name):
    wait_until(lambda: len(list(folder.glob(f"{name}*"))) == 2)


@pytest.mark.parametrize("name", SCENARIOS)
def test_processes_end_together_and_say_why_once(start, work_dir, name):
    scenario = SCENARIOS[name]
    launcher = start(scenario)
    for number in scenario.signals:
        wait_until_both(work_dir, "ready")
        time.sleep(0.2)
        launcher.send_signal(number)
    out, err = launcher.communicate(timeout=60)
    pids = {path.name: path.read_text() for path in work_dir.glob("ready*")}
    assert (launcher.returncode, out) == (scenario.code, ""), err
    assert re.fullmatch(scenario.stderr.replace("PID1", pids.get("ready1", "")), err), err
    starts = {path.name.partition("-")[2] for path in work_dir.glob("started*")}
    assert len(starts) == scenario.num_starts
    saved = {} if scenario.saved is None else dict.fromkeys(("saved0", "saved1"), scenario.saved)
    for file, text in (scenario.files | saved).items():
        assert (work_dir / file).read_text() == text
    assert saved or not list(work_dir.glob("saved*"))
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_the_processes_save_and_end_if_their_launcher_is_killed(start, work_dir):
    launcher = start(Scenario(program=SAVE))
    wait_until_both(work_dir, "ready")
    launcher.kill()
    wait_until_both(work_dir, "saved")
    shutil.rmtree(work_dir.parent / "temporary")
    (work_dir.parent / "temporary").mkdir()


def test_each_gpu_has_a_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert Placement(local_size=None, device="cuda").num_local_processes() == 3
    assert Placement(local_size=2, device="cuda").num_local_processes() == 2


@pytest.mark.parametrize(("local_size", "num_gpus"), [(None, 0), (4, 3)])
def test_more_processes_than_gpus_are_refused(monkeypatch, local_size, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(UsageError, match="torch sees"):
        Placement(local_size=local_size, device="cuda").num_local_processes()


@pytest.fixture
def failure(tmp_path, monkeypatch):
    """Make the failure of a process as torch reads it."""

    numbers = itertools.count()

    def make(rank, *, exit_code=1, at=100, message="", **facts):
        path = tmp_path / f"{next(numbers)}.json"
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        monkeypatch.setattr(time, "time", lambda: at)
        if message:
            report_failure(message, exit_code=exit_code, **facts)
        return ProcessFailure(rank, pid=77, exitcode=exit_code, error_file=str(path))

    return make


@pytest.mark.parametrize(
    ("cause", "others"),
    [
        # Killed; another rank lost its peers, and one was ended before it had a handler.
        ({"exit_code": -9}, [{"message": "lost", "is_consequence": True}, {"exit_code": -15}]),
        ({"message": "what", "at": 102}, [{"message": "lost", "is_consequence": True}]),
        ({"message": "first"}, [{"message": "second", "at": 101}]),
        ({"message": "what"}, [{"exit_code": 1}]),
        # torch kills what does not end within 30 s of SIGTERM.
        ({"exit_code": -11}, [{"exit_code": -9, "at": 130}]),
        ({"exit_code": 1}, [{"exit_code": -9, "at": 130}]),
        ({"exit_code": -15}, [{"exit_code": -15, "at": 101}]),
    ],
)
def test_the_root_cause_is_found_among_its_consequences(failure, cause, others):
    expected = str(_root_cause({0: failure(0, **cause)})).replace("rank 0", "rank R")
    for rank in range(len(others) + 1):
        facts = [*others[:rank], cause, *others[rank:]]
        failures = {number: failure(number, **each) for number, each in enumerate(facts)}
        assert str(_root_cause(failures)).replace(f"rank {rank}", "rank R") == expected


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(-11, "was killed by SIGSEGV"), (7, "exited with code 7 without an error message")],
)
def test_a_process_without_a_report_is_named_with_its_signal_or_exit_code(
    failure, exit_code, words
):
    error = _root_cause({3: failure(3, exit_code=exit_code)})
    assert re.fullmatch(rf"rank 3 \(host .*, process 77\) {words}; {RESUME}", str(error))
    assert error.exit_code == 1


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
