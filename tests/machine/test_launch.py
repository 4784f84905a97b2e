"""Launching several processes that end together; tiny programs take the place of a training."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import wait_until
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tfm.errors import UsageError
from tfm.machine.cpu import num_cores
from tfm.machine.interruption import report_failure
from tfm.machine.launch import _interface_towards, _root_cause
from tfm.machine.processes import Placement

RESUME = "run the same command again to resume from the last checkpoint"

# The command line, with another command in the processes.
LAUNCHER = """
import sys
from tfm.cli import main
from tfm.machine.launch import launch
from tfm.machine.processes import Placement
size, nodes, rank, rendezvous, restarts, join_seconds, *command = sys.argv[1:]
placement = Placement(
    local_size=int(size), nodes=int(nodes), node_rank=int(rank), rendezvous=rendezvous,
    restarts=int(restarts),
)
main.app = lambda **_: sys.exit(launch(placement, command, join_seconds=int(join_seconds)))
main.main()
"""
# The start of all programs. `ready` waits until both processes have called it.
START = """
import json, os, signal, sys, time
from pathlib import Path
from tfm.machine.interruption import end_process, report_failure
rank, here = int(os.environ["RANK"]), Path.cwd()
def ready():
    (here / f"partial{rank}").write_text(str(os.getpid()))
    (here / f"partial{rank}").rename(here / f"ready{rank}")
    while not all((here / f"ready{other}").exists() for other in (0, 1)):
        time.sleep(0.01)
    time.sleep(0.05)
"""
# Saves and stops after a signal, as a training does.
SAVE_AND_STOP = """
from tfm.cli import main
from tfm.machine.interruption import StopRequests
from tfm.errors import InterruptedRunError
def train(**_):
    with StopRequests("stopping") as stop:
        ready()
        while stop.received is None:
            time.sleep(0.01)
        time.sleep(0.5)
        (here / f"saved{rank}").write_text(str(stop.received))
        raise InterruptedRunError("saved", exit_code=stop.exit_code)
main.app = train
main.main()
"""


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
    """Start a launcher in the working directory."""

    def start_launcher(
        text,
        *,
        processes=2,
        nodes=1,
        rank=0,
        rendezvous="",
        restarts=0,
        join_seconds=60,
        before="signal.signal(signal.SIGHUP, signal.SIG_DFL)",
    ):
        command = [sys.executable, "-c", START + text]
        return fork_python(
            f"import os, signal, tempfile\nos.chdir({str(work_dir)!r})\n"
            f"tempfile.tempdir = {str(work_dir.parent / 'temporary')!r}\n{before}\n{LAUNCHER}",
            *(processes, nodes, rank, rendezvous, restarts, join_seconds, *command),
        )

    return start_launcher


def end(launcher):
    """Wait for a launcher; return its exit code and the lines on stderr."""
    out, err = launcher.communicate(timeout=60)
    assert out == ""
    return launcher.returncode, err.splitlines()


def wait_until_all(folder, pattern):
    wait_until(lambda: len(list(folder.glob(pattern))) == 2)


def assert_all_gone(folder):
    """Check that no process that was ready is still running."""
    pids = [int(path.read_text()) for path in folder.glob("ready*")]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# --- environment


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("os.environ.pop('OMP_NUM_THREADS', None)", str(max(1, num_cores() // 2))),
        ("os.environ['OMP_NUM_THREADS'] = '5'", "5"),
    ],
)
def test_the_processes_share_the_cores_unless_the_user_sets_threads(
    start, work_dir, before, expected
):
    text = '(here / f"threads{rank}").write_text(os.environ["OMP_NUM_THREADS"])'
    assert end(start(text, before=before)) == (0, [])
    assert [path.read_text() for path in work_dir.iterdir()] == [expected] * 2


def test_each_gpu_has_a_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert Placement(local_size=None, device="cuda").num_local_processes() == 3
    assert Placement(local_size=2, device="cuda").num_local_processes() == 2


@pytest.mark.parametrize(("local_size", "num_gpus"), [(None, 0), (4, 3)])
def test_more_processes_than_gpus_are_refused(monkeypatch, local_size, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(UsageError, match="torch sees"):
        Placement(local_size=local_size, device="cuda").num_local_processes()


# --- failures


def test_a_killed_process_is_named_and_ends_the_others(start, work_dir):
    launcher = start("ready()\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)")
    code, lines = end(launcher)
    pid = (work_dir / "ready1").read_text()
    assert code == 1
    name = f"rank 1 (host {socket.gethostname()}, process {pid})"
    assert lines == [f"tfm: {name} was killed by SIGKILL (out of memory?); {RESUME}"]
    assert_all_gone(work_dir)


def test_an_error_of_all_processes_is_shown_once(start):
    text = 'ready()\nreport_failure("what and where: what to do", exit_code=2)\nsys.exit(2)'
    assert end(start(text)) == (2, ["tfm: what and where: what to do"])


def test_the_traceback_of_a_bug_is_shown_once(start):
    text = """
from tfm.cli import main
def fail(**_):
    ready()
    raise ZeroDivisionError("by 0")
main.app = fail
main.main()
"""
    code, lines = end(start(text))
    assert code == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ZeroDivisionError: by 0"
    assert re.fullmatch(
        rf"tfm: rank . \(host .*, process .*\) hit a bug: ZeroDivisionError: by 0; {RESUME}",
        lines[-1],
    )
    assert "\n".join(lines).count("Traceback") == 1


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


# --- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_makes_all_processes_save(start, work_dir, number, code):
    launcher = start(SAVE_AND_STOP)
    wait_until_all(work_dir, "ready*")
    time.sleep(0.2)
    launcher.send_signal(number)
    assert end(launcher) == (code, ["stopping", "tfm: saved"])
    saved = [(work_dir / f"saved{rank}").read_text() for rank in (0, 1)]
    assert saved == [str(int(number))] * 2
    assert_all_gone(work_dir)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_stays_ignored(start, work_dir, number):
    nohup = f"signal.signal({int(number)}, signal.SIG_IGN)"
    launcher = start("ready()\ntime.sleep(1)", before=nohup)
    wait_until_all(work_dir, "ready*")
    launcher.send_signal(number)
    assert end(launcher) == (0, [])


def test_a_second_ctrl_c_stops_at_once(start, work_dir):
    launcher = start(SAVE_AND_STOP)
    wait_until_all(work_dir, "ready*")
    for _ in range(2):
        time.sleep(0.2)
        launcher.send_signal(signal.SIGINT)
    code, lines = end(launcher)
    assert code == 130
    assert lines[0] == "stopping"
    assert re.match("tfm: stopped without saving", lines[1])
    assert not list(work_dir.glob("saved*"))
    assert_all_gone(work_dir)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_signal_before_the_processes_handle_it_stops_them(start, work_dir, number, code):
    launcher = start("signal.signal(signal.SIGINT, signal.SIG_DFL)\nready()\ntime.sleep(60)")
    wait_until_all(work_dir, "ready*")
    launcher.send_signal(number)
    assert end(launcher) == (code, [f"tfm: stopped before the run could save: {RESUME}"])
    assert_all_gone(work_dir)


def test_a_failure_while_saving_is_shown(start, work_dir):
    text = """
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
ready()
while not signals:
    time.sleep(0.01)
end_process(["lost the others", "disk full"][rank], is_consequence=rank == 0)
"""
    launcher = start(text)
    wait_until_all(work_dir, "ready*")
    launcher.send_signal(signal.SIGTERM)
    assert end(launcher) == (1, ["tfm: disk full"])


def test_the_processes_save_and_end_if_their_launcher_is_killed(start, work_dir):
    launcher = start(SAVE_AND_STOP)
    wait_until_all(work_dir, "ready*")
    launcher.kill()
    wait_until_all(work_dir, "saved*")
    shutil.rmtree(work_dir.parent / "temporary")
    (work_dir.parent / "temporary").mkdir()


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


# --- several nodes


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_processes_of_two_nodes_compute_together(start, work_dir, port):
    text = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([rank])
dist.all_reduce(ranks)
(here / f"sum{rank}").write_text(f"{os.environ['LOCAL_RANK']} {int(ranks)}")
dist.destroy_process_group()
"""
    nodes = [start(text, nodes=2, rank=rank, rendezvous=f"127.0.0.1:{port}") for rank in (1, 0)]
    for rank, node in zip((1, 0), nodes, strict=True):
        waits = f"node {rank} waits for the other nodes at 127.0.0.1:{port}"
        assert end(node) == (0, [waits])
    sums = [path.read_text() for path in sorted(work_dir.glob("sum*"))]
    assert sums == ["0 6", "1 6", "0 6", "1 6"]


QUICK = """
from tfm.machine import nodes as module
module._POLL_SECONDS = module._GRACE_SECONDS = 0.1
os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "1"
"""


@pytest.mark.parametrize("failing", [0, 1])
def test_all_nodes_say_what_ended_the_run(start, work_dir, port, failing):
    text = f"""
ready()
if rank == {failing}:
    os.kill(os.getpid(), 9)
end_process("rank lost the connection", is_consequence=True)
"""
    where = f"127.0.0.1:{port}"
    nodes = [start(text, processes=1, nodes=2, rank=rank, rendezvous=where) for rank in (0, 1)]
    ends = [end(node) for node in nodes]
    pid = (work_dir / f"ready{failing}").read_text()
    name = f"rank {failing} (host {socket.gethostname()}, process {pid})"
    for code, [_, line] in ends:
        assert code == 1
        assert line == f"tfm: {name} was killed by SIGKILL (out of memory?); {RESUME}"


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_node_with_a_frozen_process_ends_after_another(start, work_dir, port, frozen):
    text = f"""
ready()
if rank == {frozen}:
    os.kill(os.getpid(), signal.SIGSTOP)
end_process("what and where")
"""
    where = f"127.0.0.1:{port}"
    nodes = [
        start(text, processes=1, nodes=2, rank=rank, rendezvous=where, before=QUICK)
        for rank in (0, 1)
    ]
    messages = ["what and where"] * 2
    messages[frozen] = (
        f"another node has ended; a process of this one did not, and was killed: {RESUME}"
    )
    for node, message in zip(nodes, messages, strict=True):
        code, [_, line] = end(node)
        assert (code, line) == (1, f"tfm: {message}")
    assert_all_gone(work_dir)


def test_a_node_does_not_wait_forever(start, port):
    launcher = start("", nodes=2, rendezvous=f"127.0.0.1:{port}", join_seconds=1)
    code, [*_, line] = end(launcher)
    assert code == 1
    assert re.match(rf"tfm: the nodes did not meet at 127.0.0.1:{port} within 1 s \(", line)
    assert "1 of 2 are missing, such as node 1" in line
    assert "--node-rank" in line


def test_ctrl_c_ends_the_wait_for_other_nodes(start, port):
    launcher = start("", nodes=2, rendezvous=f"127.0.0.1:{port}")
    wait_until(lambda: "waits" in launcher.errors)
    launcher.send_signal(signal.SIGINT)
    code, lines = end(launcher)
    assert (code, len(lines)) == (-signal.SIGINT, 1)  # a shell shows 130


@pytest.mark.parametrize("endpoint", ["127.0.0.1:29500", "[::1]:29500", "localhost:29500"])
def test_the_interface_towards_an_address_is_found(endpoint):
    if "::1" in endpoint and not Path("/proc/net/if_inet6").exists():
        pytest.skip("needs IPv6")
    assert _interface_towards(endpoint) == "lo"


def test_an_address_without_an_interface_has_none():
    assert _interface_towards("[2001:db8::1%nowhere]:1") is None
    assert _interface_towards("no-such-host.invalid:1") is None


# --- restarts


# Each start leaves a file; `attempt` counts from 0.
_COUNT = """
attempt = int(os.environ.get("TFM_RESTART", "restart 0").split()[1])
(here / f"started{rank}-{attempt}").touch()
"""


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_processes_are_restarted_until_they_succeed_or_too_often(start, work_dir, restarts):
    text = (
        _COUNT
        + """
if attempt < 2:
    ready()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
    )
    code, lines = end(start(text, restarts=restarts))
    num_starts = min(restarts, 2) + 1
    assert len(list(work_dir.glob("started1-*"))) == num_starts
    assert code == (0 if restarts > 2 else 1)
    if restarts < 2:
        assert re.search("rank 1 .* was killed by SIGKILL", lines[-1])


def test_a_restarted_process_learns_the_cause(start, work_dir):
    text = (
        _COUNT
        + """
from tfm.machine.interruption import cause_of_restart
if attempt == 0:
    ready()
    if rank == 1:
        end_process("rank 1 has stalled")
    end_process("rank 0 waited for others", is_consequence=True)
(here / f"cause{rank}").write_text(cause_of_restart())
"""
    )
    assert end(start(text, restarts=2)) == (0, [])
    for rank in (0, 1):
        assert (work_dir / f"cause{rank}").read_text() == "restart 1 of 2: rank 1 has stalled"


@pytest.mark.parametrize(
    ("error", "num_starts", "code"),
    [("UsageError", 1, 2), ("TrainingError", 1, 1), ("UnequalRanksError", 3, 1)],
)
def test_failures_that_would_recur_are_not_repeated(start, work_dir, error, num_starts, code):
    text = (
        _COUNT
        + f"""
from tfm.cli import main
from tfm import errors
def train(**_):
    ready()
    raise errors.{error}("the reason")
main.app = train
main.main()
"""
    )
    found = end(start(text, restarts=2))
    assert found == (code, ["tfm: the reason"])
    assert len({path.name[-1] for path in work_dir.glob("started*")}) == num_starts


@pytest.mark.parametrize("failing", [0, 1])
def test_the_processes_of_all_nodes_are_restarted(start, work_dir, port, failing):
    text = (
        _COUNT
        + f"""
from tfm.machine.interruption import cause_of_restart
if attempt < 2:
    ready()
    if rank == {failing}:
        end_process("the disk is full")
    end_process("rank lost the connection", is_consequence=True)
(here / f"cause{{rank}}").write_text(cause_of_restart())
"""
    )
    where = f"127.0.0.1:{port}"
    nodes = [
        start(text, processes=1, nodes=2, rank=rank, rendezvous=where, restarts=2, before=QUICK)
        for rank in (0, 1)
    ]
    for rank, node in enumerate(nodes):
        waits = f"node {rank} waits for the other nodes at {where}"
        assert end(node) == (0, [waits] * 3)
        assert (work_dir / f"cause{rank}").read_text() == "restart 2 of 2: the disk is full"
        assert len(list(work_dir.glob(f"started{rank}-*"))) == 3


@pytest.mark.parametrize(("recurs", "num_starts"), [(True, 1), (False, 2)])
def test_no_node_is_restarted_in_vain(start, work_dir, port, recurs, num_starts):
    text = (
        _COUNT
        + f"""
ready()
if rank == 1:
    report_failure("what and where", recurs={recurs})
    sys.exit(1)
end_process("rank lost the connection", is_consequence=True)
"""
    )
    where = f"127.0.0.1:{port}"
    nodes = [
        start(text, processes=1, nodes=2, rank=rank, rendezvous=where, restarts=1, before=QUICK)
        for rank in (0, 1)
    ]
    for rank, node in enumerate(nodes):
        code, [*_, line] = end(node)
        assert (code, line) == (1, "tfm: what and where")
        assert len(list(work_dir.glob(f"started{rank}-*"))) == num_starts


@pytest.mark.parametrize("killed", [0, 1])
def test_all_nodes_start_again_with_a_launcher_that_was_killed(start, work_dir, port, killed):
    text = """
from tfm.machine.interruption import stop_with_launcher
stop_with_launcher()
number = len(list(here.glob(f"started{rank}-*")))
(here / f"started{rank}-{number}").touch()
if number == 0:
    ready()
    while all((here / f"started{other}-0").exists() for other in (0, 1)):
        time.sleep(0.01)
        other = int((here / f"ready{1 - rank}").read_text())
        if not Path(f"/proc/{other}").exists():
            end_process("rank lost the connection", is_consequence=True)
"""
    where = f"127.0.0.1:{port}"

    def start_node(rank):
        return start(
            text, processes=1, nodes=2, rank=rank, rendezvous=where, restarts=1, before=QUICK
        )

    nodes = [start_node(rank) for rank in (0, 1)]
    wait_until_all(work_dir, "ready*")
    nodes[killed].kill()
    again = start_node(killed)
    assert end(nodes[1 - killed])[0] == 0
    assert end(again)[0] == 0
    assert len(list(work_dir.glob("started*"))) == 4
    shutil.rmtree(work_dir.parent / "temporary")
    (work_dir.parent / "temporary").mkdir()


def test_a_signal_ends_a_restarted_run_without_the_failure_before(start, work_dir):
    text = (
        _COUNT
        + """
if attempt == 0:
    end_process("a failure before")
"""
        + SAVE_AND_STOP
    )
    launcher = start(text, restarts=1)
    wait_until_all(work_dir, "ready*")
    launcher.send_signal(signal.SIGTERM)
    code, lines = end(launcher)
    assert code == 0
    assert lines[-1] == "tfm: saved"
    assert len(list(work_dir.glob("saved*"))) == 2
