"""Launchers that join a rendezvous and share failures; threads and processes act as nodes."""

import contextlib
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from tfm.distributed import rendezvous as module
from tfm.distributed.failures import FailedProcessError
from tfm.distributed.interruption import StopRequests
from tfm.distributed.layout import Layout
from tfm.distributed.rendezvous import Rendezvous
from tfm.errors import InterruptedRunError, UsageError

_RENDEZVOUS = []


def _has_ipv6():
    """Whether this machine can connect to itself by IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore the variable that a rendezvous sets."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def join_threads(monkeypatch):
    """Wait for all threads: one that uses a store while Python ends would abort Python."""
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


def new_rendezvous(port, rank, *, host="127.0.0.1", nodes=2, seconds=20, stop=None):
    layout = Layout(nodes=nodes, node_rank=rank, host=host, port=port)
    _RENDEZVOUS.append(Rendezvous(layout, stop or StopRequests(), join_seconds=seconds))
    return _RENDEZVOUS[-1]


def join(*nodes):
    """Let nodes join at the same time; return the result or error of each."""

    def outcome(node):
        try:
            return node.next_rendezvous()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(nodes)) as threads:
        return list(threads.map(outcome, nodes))


@pytest.fixture
def two_nodes(port):
    nodes = [new_rendezvous(port, 1), new_rendezvous(port, 0)]
    join(*nodes)
    return nodes[::-1]


def test_a_single_node_uses_an_address_that_no_other_can_reach(monkeypatch):
    info = Rendezvous(Layout(), StopRequests(), join_seconds=1).next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    port = info.bootstrap_store_info.master_port
    with socket.create_connection(("127.0.0.1", port)):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port))


def test_ranks_follow_from_node_ranks(port):
    infos = join(*(new_rendezvous(port, rank, nodes=3) for rank in (2, 0, 1)))
    assert [(info.rank, info.world_size) for info in infos] == [(2, 3), (0, 3), (1, 3)]
    assert {info.bootstrap_store_info.master_port for info in infos} == {port}


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_gloo_uses_the_network_between_the_nodes(port, host):
    join(new_rendezvous(port, 0, host=host), new_rendezvous(port, 1, host=host))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


@needs_ipv6
def test_the_network_towards_an_ipv6_address_is_found(tmp_path, monkeypatch):
    addresses = tmp_path / "if_inet6"
    addresses.write_text(f"{'fd' + '0' * 30} 01 80 10 80 eth0\n{'1':0>32} 02 80 10 80 eth7\n")
    monkeypatch.setattr(module, "_IPV6_ADDRESSES", addresses)
    assert module._interface_towards("::1") == "eth7"
    monkeypatch.setattr(module, "_IPV6_ADDRESSES", tmp_path / "none")
    assert module._interface_towards("::1") is None


def test_a_network_that_the_user_has_chosen_is_kept(port, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    join(new_rendezvous(port, 0), new_rendezvous(port, 1))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize(
    ("rank", "pattern"),
    [
        (0, r"--node-rank 1 did not join at 127.0.0.1:\d+ within 1 s: start the same command .*"),
        (1, r"node 0 does not answer at 127.0.0.1:\d+ within 1 s: start the same command .*"),
    ],
)
def test_a_node_does_not_wait_forever(port, rank, pattern):
    with pytest.raises(FailedProcessError, match=pattern):
        new_rendezvous(port, rank, seconds=1).next_rendezvous()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_wait_for_other_nodes(port, rank):
    with StopRequests() as stop:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(InterruptedRunError) as stopped:
            new_rendezvous(port, rank, seconds=1, stop=stop).next_rendezvous()
    assert stopped.value.exit_code == 130


def test_two_nodes_of_the_same_rank_are_refused(port):
    outcomes = join(new_rendezvous(port, 0), new_rendezvous(port, 1), new_rendezvous(port, 1))
    refused = [outcome for outcome in outcomes if isinstance(outcome, UsageError)]
    assert len(refused) == 1
    assert "--node-rank 1 has already joined at" in str(refused[0])


def test_nodes_that_disagree_about_their_number_are_refused(port):
    outcomes = join(
        new_rendezvous(port, 0, nodes=2, seconds=1), new_rendezvous(port, 1, nodes=3, seconds=1)
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, UsageError)]
    assert len(refused) == 1
    assert "on other nodes" in str(refused[0])


def test_a_port_in_use_is_refused(port):
    with socket.create_server(("", port)):
        with pytest.raises(FailedProcessError, match=r"does not work here: .*EADDRINUSE") as failed:
            new_rendezvous(port, 0).next_rendezvous()
        assert "\n" not in str(failed.value)


def test_a_server_that_is_not_a_rendezvous_is_refused(port):
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(1)

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(FailedProcessError, match=r"does not work here|no rendezvous answers"):
            new_rendezvous(port, 1, seconds=1).next_rendezvous()


def test_a_server_that_does_not_answer_is_refused(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(FailedProcessError, match=r"no rendezvous answers at .* within 1 s"),
    ):
        new_rendezvous(port, 1, seconds=1).next_rendezvous()


def test_nodes_learn_of_the_failure_of_another(two_nodes):
    first, second = two_nodes
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    shared = second.share_failure(FailedProcessError("what", exit_code=2), is_consequence=False)
    assert str(shared) == f"node 1 ({socket.gethostname()}): what"
    time.sleep(0.5)
    with pytest.raises(FailedProcessError) as raised:
        first.num_nodes_waiting()
    assert (str(raised.value), raised.value.exit_code) == (str(shared), 2)


@pytest.mark.parametrize(
    ("published", "pattern", "exit_code"),
    [
        ('["done", 2]', "done", 2),
        ('["done", 0]', "done", 1),
        ('["done", 256]', "done", 1),
        ('["done", -1]', "done", 1),
        ('["done", "2"]', "another node", 1),
        ('["done", Infinity]', "another node", 1),
        ("[1, 1]", "another node", 1),
        ("{}", "another node", 1),
        ("[" * 100_000, "another node", 1),
        ("nonsense", "another node", 1),
        (b"\xff", "another node", 1),
    ],
)
def test_no_entry_of_the_store_is_a_success(published, pattern, exit_code):
    failure = module._parse_failure(published)
    assert re.match(pattern, str(failure))
    assert failure.exit_code == exit_code


@pytest.mark.parametrize("published", ['["done", 0]', "nonsense"])
def test_whoever_reaches_the_port_cannot_end_a_run_as_a_success(two_nodes, port, published):
    stranger = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.PrefixStore("tfm", stranger).set("failure", published)
    for node in two_nodes:
        assert node._has_failure.wait(10)
        with pytest.raises(FailedProcessError) as raised:
            node.num_nodes_waiting()
        assert raised.value.exit_code == 1


def test_a_node_0_that_is_gone_as_soon_as_all_have_joined_is_down(port):
    class Gone:
        def clone(self):
            raise dist.DistNetworkError("The client socket has timed out")

    node = new_rendezvous(port, 1)
    node._store = Gone()
    node._exchange_failures()
    with pytest.raises(FailedProcessError, match=r"^node 0 at .* is down"):
        node.num_nodes_waiting()


def test_a_node_with_a_consequence_waits_for_the_cause(two_nodes):
    first, second = two_nodes
    timer = threading.Timer(
        0.3, second.share_failure, (FailedProcessError("the cause"),), {"is_consequence": False}
    )
    timer.start()
    error = first.share_failure(FailedProcessError("lost the others"), is_consequence=True)
    assert str(error).endswith("the cause")
    timer.join()


def test_a_node_does_not_wait_forever_for_the_cause(monkeypatch, two_nodes):
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.3)
    lost = FailedProcessError("lost the others")
    assert [node.share_failure(lost, is_consequence=True) for node in two_nodes] == [lost, lost]


_LAUNCH = """
import os, sys
from tfm.cli import main
from tfm.distributed.launch import launch
from tfm.distributed.layout import Layout
rank, host, port, program, folder = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
os.chdir(folder)
layout = Layout(local_size=2, nodes=2, node_rank=rank, host=host, port=port)
main.app = lambda **_: launch(layout, [sys.executable, "-c", program])
main.main()
"""
_KILL_ITSELF = """
import os, sys, time
if os.environ["RANK"] == "2":
    open("pid", "w").write(str(os.getpid()))
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


@pytest.fixture
def start(port, tmp_path, fork_python):
    """Start a launcher as one of two nodes."""

    def start_launcher(rank, program, *, host="127.0.0.1"):
        return fork_python(_LAUNCH, rank, host, port, program, tmp_path, TMPDIR=str(tmp_path))

    return start_launcher


def test_a_killed_process_ends_all_nodes_and_is_named(start, tmp_path):
    first, second = (start(rank, _KILL_ITSELF) for rank in (0, 1))
    lines = [launcher.communicate(timeout=60)[1].splitlines() for launcher in (first, second)]
    pid = (tmp_path / "pid").read_text()
    expected = (
        f"tfm: node 1 ({socket.gethostname()}): rank 2 (process {pid}) was killed by SIGKILL "
        "(out of memory?); run the same command again to resume from the last checkpoint"
    )
    assert [printed[1:] for printed in lines] == [[expected], [expected]]
    assert (first.returncode, second.returncode) == (1, 1)


@needs_ipv6
def test_the_processes_of_two_nodes_compute_together_over_ipv6(start, tmp_path):
    program = """
import pathlib, torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank()])
dist.all_reduce(ranks)
pathlib.Path(f"sum{dist.get_rank()}").write_text(str(int(ranks)))
dist.destroy_process_group()
"""
    launchers = [start(rank, program, host="::1") for rank in (0, 1)]
    for launcher in launchers:
        assert launcher.communicate(timeout=60)[1].startswith("node ")
    assert [launcher.returncode for launcher in launchers] == [0, 0]
    assert [path.read_text() for path in sorted(tmp_path.glob("sum*"))] == ["6"] * 4


def test_the_other_nodes_end_if_node_0_dies(start, port, tmp_path):
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
        f"tfm: node 0 at 127.0.0.1:{port} is down: run the same command again to resume from the "
        "last checkpoint, on all nodes"
    )
