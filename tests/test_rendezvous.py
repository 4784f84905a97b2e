"""Launchers that meet, and hear of each other; threads and processes stand for machines."""

import contextlib
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfm.distributed import rendezvous as module
from tfm.distributed.failures import FailedProcessError
from tfm.distributed.interruption import InterruptedRunError, StopRequests
from tfm.distributed.layout import Layout
from tfm.distributed.rendezvous import Rendezvous
from tfm.errors import UsageError

_RENDEZVOUS = []


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """A rendezvous says which network to use; let it be forgotten."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch):
    """One that hears from a store while Python ends would abort it."""
    before = set(threading.enumerate())
    yield
    monkeypatch.setattr(module, "_FAREWELL_SECONDS", 0.2)
    while _RENDEZVOUS:
        _RENDEZVOUS.pop().leave()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def meeting(port, rank, *, nodes=2, seconds=20, stop=None):
    layout = Layout(nodes=nodes, node_rank=rank, host="127.0.0.1", port=port)
    _RENDEZVOUS.append(Rendezvous(layout, stop or StopRequests(), join_seconds=seconds))
    return _RENDEZVOUS[-1]


def meet(*meetings):
    """Let machines meet at the same time: what each hears, or why it does not."""

    def outcome(each):
        try:
            return each.next_rendezvous()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(meetings)) as threads:
        return list(threads.map(outcome, meetings))


@pytest.fixture
def machines(port):
    both = [meeting(port, 1), meeting(port, 0)]
    meet(*both)
    return both[::-1]


def test_a_machine_that_is_alone_meets_where_no_other_can_come(monkeypatch):
    info = Rendezvous(Layout(), StopRequests(), join_seconds=1).next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    port = info.bootstrap_store_info.master_port
    with socket.create_connection(("127.0.0.1", port)):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port))


def test_ranks_follow_from_the_numbers_of_the_machines(port):
    infos = meet(*(meeting(port, rank, nodes=3) for rank in (2, 0, 1)))
    assert [(info.rank, info.world_size) for info in infos] == [(2, 3), (0, 3), (1, 3)]
    assert {info.bootstrap_store_info.master_port for info in infos} == {port}


def test_the_network_between_the_machines_is_the_one_to_use(machines):
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_a_network_that_is_chosen_already_stays(port, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    meet(meeting(port, 0), meeting(port, 1))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize(
    ("rank", "pattern"),
    [
        (0, r"--node-rank 1 did not come at 127.0.0.1:\d+ within 1 s: start the same command .*"),
        (1, r"machine 0 does not answer at 127.0.0.1:\d+ within 1 s: start the same command .*"),
    ],
)
def test_a_machine_does_not_wait_for_ever(port, rank, pattern):
    with pytest.raises(FailedProcessError, match=pattern):
        meeting(port, rank, seconds=1).next_rendezvous()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_waiting(port, rank):
    with StopRequests() as stop:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(InterruptedRunError) as stopped:
            meeting(port, rank, seconds=1, stop=stop).next_rendezvous()
    assert stopped.value.exit_code == 130


def test_two_machines_of_the_same_number_are_refused(port):
    outcomes = meet(meeting(port, 0), meeting(port, 1), meeting(port, 1))
    refused = [each for each in outcomes if isinstance(each, UsageError)]
    assert len(refused) == 1
    assert "--node-rank 1 is at" in str(refused[0])


def test_machines_that_expect_other_numbers_of_machines_are_refused(port):
    outcomes = meet(meeting(port, 0, nodes=2, seconds=1), meeting(port, 1, nodes=3, seconds=1))
    refused = [each for each in outcomes if isinstance(each, UsageError)]
    assert len(refused) == 1
    assert "on other machines" in str(refused[0])


def test_a_port_that_is_taken_is_refused(port):
    with socket.create_server(("", port)):
        with pytest.raises(FailedProcessError, match=r"does not work here: .*EADDRINUSE") as failed:
            meeting(port, 0).next_rendezvous()
        assert "\n" not in str(failed.value)


def test_a_place_that_is_no_meeting_is_refused(port):
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(1)

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(FailedProcessError, match=r"does not work here|no rendezvous answers"):
            meeting(port, 1, seconds=1).next_rendezvous()


def test_a_place_that_says_nothing_is_refused(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(FailedProcessError, match=r"no rendezvous answers at .* within 1 s"),
    ):
        meeting(port, 1, seconds=1).next_rendezvous()


def test_machines_hear_of_the_failure_of_another(machines):
    first, second = machines
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    told = second.share(FailedProcessError("what", exit_code=2), is_consequence=False)
    assert str(told) == f"machine 1 ({socket.gethostname()}): what"
    time.sleep(0.5)
    with pytest.raises(FailedProcessError) as heard:
        first.num_nodes_waiting()
    assert (str(heard.value), heard.value.exit_code) == (str(told), 2)


def test_a_machine_with_a_consequence_waits_for_the_cause(machines):
    first, second = machines
    timer = threading.Timer(
        0.3, second.share, (FailedProcessError("the cause"),), {"is_consequence": False}
    )
    timer.start()
    heard = first.share(FailedProcessError("lost the others"), is_consequence=True)
    assert str(heard).endswith("the cause")
    timer.join()


def test_the_cause_is_not_waited_for_for_ever(monkeypatch, machines):
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.3)
    lost = FailedProcessError("lost the others")
    assert [each.share(lost, is_consequence=True) for each in machines] == [lost, lost]


_LAUNCHES = """
import os, sys
from tfm.cli import main
from tfm.distributed.launch import launch
from tfm.distributed.layout import Layout
rank, port, program, folder = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
os.chdir(folder)
layout = Layout(local_size=2, nodes=2, node_rank=rank, host="127.0.0.1", port=port)
main.app = lambda **_: launch(layout, [sys.executable, "-c", program])
main.main()
"""
_KILLS_ITSELF = """
import os, sys, time
if os.environ["RANK"] == "2":
    open("pid", "w").write(str(os.getpid()))
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


@pytest.fixture
def start(port, tmp_path, fork_python):
    """Start a launcher as one of two machines."""

    def start_launcher(rank, program):
        return fork_python(_LAUNCHES, rank, port, program, tmp_path, TMPDIR=str(tmp_path))

    return start_launcher


def test_a_process_that_is_killed_ends_all_machines_by_its_name(start, tmp_path):
    first, second = (start(rank, _KILLS_ITSELF) for rank in (0, 1))
    lines = [each.communicate(timeout=60)[1].splitlines() for each in (first, second)]
    pid = (tmp_path / "pid").read_text()
    told = (
        f"tfm: machine 1 ({socket.gethostname()}): rank 2 (process {pid}) was killed by SIGKILL "
        "(out of memory?); the same command goes on from the last checkpoint"
    )
    assert [each[1:] for each in lines] == [[told], [told]]
    assert (first.returncode, second.returncode) == (1, 1)


def test_the_other_machines_end_if_machine_0_dies(start, port, tmp_path):
    program = """
import os, pathlib, time
launcher = os.getppid()
pathlib.Path("there").touch()
while os.getppid() == launcher:
    time.sleep(0.1)
"""
    first, second = start(0, program), start(1, program)
    while not (tmp_path / "there").exists():
        assert second.poll() is None
    first.kill()
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    [line] = err.splitlines()[1:]
    assert line == (
        f"tfm: machine 0 at 127.0.0.1:{port} is gone: the same command goes on from the last "
        "checkpoint, on all machines"
    )
