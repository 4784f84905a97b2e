"""Machines that meet, and hear of each other; threads and processes stand for them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tfm.distributed import meeting as module
from tfm.distributed.failures import FailedProcessError
from tfm.distributed.interruption import InterruptedRunError, StopRequests
from tfm.distributed.layout import Layout
from tfm.distributed.meeting import Meeting
from tfm.errors import UsageError

_MEETINGS = []


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """Meeting says which network to use; let it be forgotten."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch):
    """One that hears from a store while Python ends would abort it."""
    before = set(threading.enumerate())
    yield
    monkeypatch.setattr(module, "_FAREWELL_SECONDS", 0)
    while _MEETINGS:
        _MEETINGS.pop().leave()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Cable:
    """Leads from a port of its own to another one, until it is cut: then nobody hears of it."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = [self._server]
        self.port = self._server.getsockname()[1]
        self.is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self._server.accept()[0]
                self._ends.append(near)
                try:
                    far = socket.create_connection(self._target)
                except ConnectionRefusedError:  # nobody listens there yet: who calls tries again
                    near.close()
                    continue
                self._ends.append(far)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._lead, args=ends, daemon=True).start()

    def _lead(self, source, sink):
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if not self.is_cut:
                    sink.sendall(content)


def meeting(port, rank, *, nodes=2, seconds=20, stop=None):
    layout = Layout(nodes=nodes, node_rank=rank, host="127.0.0.1", port=port)
    _MEETINGS.append(Meeting(layout, stop or StopRequests(), join_seconds=seconds))
    return _MEETINGS[-1]


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
    info = Meeting(Layout(), StopRequests(), join_seconds=1).next_rendezvous()
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
        (0, r"--node-rank 1 did not come at 127.0.0.1:\d+ within 0 s: start the same command .*"),
        (1, r"machine 0 does not answer at 127.0.0.1:\d+ within 0 s: start the same command .*"),
    ],
)
def test_a_machine_does_not_wait_for_ever(port, rank, pattern):
    with pytest.raises(FailedProcessError, match=pattern):
        meeting(port, rank, seconds=0.3).next_rendezvous()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_waiting(port, rank):
    with StopRequests() as stop:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(InterruptedRunError) as stopped:
            meeting(port, rank, stop=stop).next_rendezvous()
    assert stopped.value.exit_code == 130


def test_two_machines_of_the_same_number_are_refused(port):
    outcomes = meet(meeting(port, 0), meeting(port, 1), meeting(port, 1))
    refused = [each for each in outcomes if isinstance(each, UsageError)]
    assert len(refused) == 1
    assert "--node-rank 1 is at" in str(refused[0])


def test_machines_that_expect_other_numbers_of_machines_are_refused(port):
    outcomes = meet(meeting(port, 0, nodes=2, seconds=2), meeting(port, 1, nodes=3, seconds=2))
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

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(FailedProcessError, match="does not work here: it must lead"):
            meeting(port, 1, seconds=2).next_rendezvous()


def test_a_place_that_says_nothing_is_refused(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(FailedProcessError, match=r"does not work here: .*no answer within 1 s"),
    ):
        meeting(port, 1, seconds=1).next_rendezvous()


def test_machines_hear_of_the_failure_of_another(machines):
    first, second = machines
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    told = second.agree(FailedProcessError("what", exit_code=2), is_consequence=False)
    assert str(told) == f"machine 1 ({socket.gethostname()}): what"
    with pytest.raises(FailedProcessError) as heard:
        first.num_nodes_waiting()
    assert (str(heard.value), heard.value.exit_code) == (str(told), 2)


def test_a_machine_with_a_consequence_waits_for_the_cause(machines):
    first, second = machines
    timer = threading.Timer(
        0.3, second.agree, (FailedProcessError("the cause"),), {"is_consequence": False}
    )
    timer.start()
    heard = first.agree(FailedProcessError("lost the others"), is_consequence=True)
    assert str(heard).endswith("the cause")
    timer.join()


def test_the_cause_is_waited_for_as_long_as_its_machine_gives_signs_of_life(monkeypatch, port):
    monkeypatch.setattr(module, "_PULSE_SECONDS", 0.05)
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.5)
    first, second = meeting(port, 0), meeting(port, 1)
    meet(first, second)
    told = FailedProcessError("the cause")
    timer = threading.Timer(1.5, second.agree, (told,), {"is_consequence": False})
    timer.start()
    heard = first.agree(FailedProcessError("lost the others"), is_consequence=True)
    assert str(heard).endswith("the cause")
    timer.join()


def test_machines_that_all_wait_for_the_cause_wait_no_longer(monkeypatch, machines):
    monkeypatch.setattr(module, "NEWS_SECONDS", 30)
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.5)
    with ThreadPoolExecutor() as threads:
        lost = FailedProcessError("lost the others")
        told = [threads.submit(each.agree, lost, is_consequence=True) for each in machines]
        first, second = (str(each.result(timeout=15)) for each in told)
    assert first == second
    assert first.endswith("lost the others")


def test_a_cut_cable_is_the_loss_of_machine_0(monkeypatch, port):
    monkeypatch.setattr(module, "_STORE_TIMEOUT", timedelta(seconds=1))
    with Cable(port) as cable:
        first, second = meeting(port, 0), meeting(cable.port, 1)
        meet(first, second)
        assert second.num_nodes_waiting() == 0
        cable.is_cut = True
        with pytest.raises(FailedProcessError, match=r"machine 0 at .* has not answered for 1 s"):
            second.num_nodes_waiting()
        consequence, own = FailedProcessError("lost the others"), FailedProcessError("what")
        assert "has not answered" in str(second.agree(consequence, is_consequence=True))
        assert second.agree(own, is_consequence=False) is own
        second.leave()


_LAUNCHES = """
import os, signal, sys, time
from datetime import timedelta
from tfm.cli import main
from tfm.distributed.layout import Layout
rank, port, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def app(**_):
    from tfm.distributed import meeting
    from tfm.distributed.launch import launch
    meeting._STORE_TIMEOUT = timedelta(seconds=float(sys.argv[4]))
    layout = Layout(local_size=2, nodes=2, node_rank=rank, host="127.0.0.1", port=port)
    return launch(layout, [sys.executable, "-c", program])
main.app = app
main.main()
"""
_KILLS_ITSELF = """
import os, sys, time
if os.environ["RANK"] == "2":
    open("pid", "w").write(str(os.getpid()))
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


def start(rank, port, program, folder, timeout="30"):
    return subprocess.Popen(
        [sys.executable, "-c", _LAUNCHES, str(rank), str(port), program, timeout],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_is_killed_ends_all_machines_by_its_name(port, tmp_path):
    first, second = (start(rank, port, _KILLS_ITSELF, tmp_path) for rank in (0, 1))
    with first, second:
        lines = [each.communicate(timeout=30)[1].splitlines() for each in (first, second)]
    pid = (tmp_path / "pid").read_text()
    told = (
        f"tfm: machine 1 ({socket.gethostname()}): rank 2 (process {pid}) was killed by SIGKILL "
        "(out of memory?); the same command goes on from the last checkpoint"
    )
    assert [each[1:] for each in lines] == [[told], [told]]
    assert (first.returncode, second.returncode) == (1, 1)


def test_the_other_machines_end_if_machine_0_dies(port, tmp_path):
    program = """
import os, pathlib, time
launcher = os.getppid()
pathlib.Path("there").touch()
while os.getppid() == launcher:
    time.sleep(0.1)
"""
    with start(0, port, program, tmp_path) as first, start(1, port, program, tmp_path) as second:
        while not (tmp_path / "there").exists():
            assert second.poll() is None
        first.kill()
        _, err = second.communicate(timeout=30)
    assert second.returncode == 1
    [line] = err.splitlines()[1:]
    assert line == (
        f"tfm: machine 0 at 127.0.0.1:{port} is gone: the same command goes on from the last "
        "checkpoint, on all machines"
    )


def test_a_machine_whose_cable_is_cut_ends_all_its_processes(port, tmp_path):
    program = """
import os, pathlib, time
pathlib.Path(os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(60)
"""
    with (
        Cable(port) as cable,
        start(0, port, program, tmp_path) as first,
        start(1, cable.port, program, tmp_path, timeout="4") as second,
    ):
        there = [tmp_path / rank for rank in "23"]
        while not all(path.exists() and path.read_text() for path in there):
            assert second.poll() is None
        cable.is_cut = True
        _, err = second.communicate(timeout=30)
        first.kill()
    assert second.returncode == 1
    [line] = err.splitlines()[1:]
    assert line.startswith(f"tfm: machine 0 at 127.0.0.1:{cable.port} has not answered for 4 s: ")
    for path in there:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
