"""torchrun's static rendezvous, over which launchers also forward signals and share a failure."""

import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from typing_extensions import override

from tfm.distributed.failures import RESUME, FailedProcessError
from tfm.distributed.interruption import SAVING_SECONDS, StopRequests
from tfm.distributed.layout import Layout
from tfm.errors import InterruptedRunError, UsageError
from tfm.reporting import say

POLL_SECONDS = 0.1
# How long a node whose processes have only lost their peers waits for the cause from another node.
_CAUSE_SECONDS = 15.0
# How long the store outlives a failure, so that the other nodes can read it there.
_FAREWELL_SECONDS = 2.0
_LOOPBACK = "127.0.0.1"
_FAILURE = "failure"
_SIOCGIFADDR = 0x8915  # Linux: get the IPv4 address of a network interface
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")  # Linux: begins with the address, ends with the name


class Rendezvous(StaticTCPRendezvous):
    """Connects the launchers of a run through a store at node 0, which their processes use, too.

    Ranks follow from the node rank. Elastic's agent calls `num_nodes_waiting` each time before it
    checks its processes; signals are forwarded, and failures of other nodes raised, from there.
    A single node uses a free port of its own.
    """

    worker_group: WorkerGroup  # the agent's processes on this node

    def __init__(self, layout: Layout, stop: StopRequests, *, join_seconds: int) -> None:
        super().__init__(
            layout.host, layout.port, layout.node_rank, layout.nodes, "tfm", join_seconds
        )
        host = f"[{layout.host}]" if ":" in layout.host else layout.host
        self._endpoint = f"{host}:{layout.port}"
        self._stop = stop
        self._deadline = time.monotonic() + join_seconds
        self._save_by: float | None = None
        self._local_failure: FailedProcessError | None = None
        self._failure: FailedProcessError | None = None
        self._has_failure = threading.Event()
        self._is_over = threading.Event()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all launchers have joined.

        Raises:
            UsageError: Their flags contradict each other.
            FailedProcessError: Some do not join in time.
            InterruptedRunError: A signal came first.
        """
        peer = _LOOPBACK
        if self.world_size == 1:
            # Only this node can reach the loopback address. An open socket is handed to the store,
            # so that no other program can take the port in between.
            listener = socket.create_server((_LOOPBACK, 0))
            self.master_addr, self.master_port = listener.getsockname()
            self._store = dist.TCPStore(  # type: ignore[attr-defined]  # torch has no stub
                self.master_addr,
                self.master_port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        else:
            say(f"node {self.rank} waits for the other nodes at {self._endpoint}")
            peer = self._join_nodes()
        if interface := _interface_towards(peer):
            # By default, gloo resolves the host name, which may have no address.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        return super().next_rendezvous()

    @override
    def num_nodes_waiting(self) -> int:
        if self._stop.received is not None:
            self._forward_signal(self._stop.received)
        if self._failure is not None:
            raise self._failure
        return 0  # no node joins later

    def share_failure(
        self, error: FailedProcessError, *, is_consequence: bool
    ) -> FailedProcessError:
        """Publish a failure of this node unless another node caused it; return the first of all."""
        if self.world_size == 1:
            return error
        if not is_consequence:
            message = f"node {self.rank} ({socket.gethostname()}): {error}"
            self._local_failure = FailedProcessError(message, exit_code=error.exit_code)
        self._has_failure.wait(_CAUSE_SECONDS if is_consequence else _FAREWELL_SECONDS)
        return self._failure or self._local_failure or error

    def leave(self) -> None:
        """Keep the store of node 0 alive until every node has had time to read a failure."""
        if self._failure is not None and self.rank == 0:
            time.sleep(_FAREWELL_SECONDS)
        self._is_over.set()

    def _join_nodes(self) -> str:
        """Wait for the other nodes; return the address of one of them."""
        nodes = str(self.world_size)
        store = PrefixStore(self.run_id, self._open_store())
        if (other := store.compare_set("nodes", "", nodes).decode()) != nodes:
            raise UsageError(f"--nodes is {nodes} here, but {other} on other nodes")
        if store.add(f"node/{self.rank}", 1) > 1:
            raise UsageError(
                f"--node-rank {self.rank} has already joined at {self._endpoint}: give each node "
                "its own"
            )
        store.set(f"address/{self.rank}", _address_towards(self.master_addr))
        ranks = range(self.world_size)
        while absent := [str(rank) for rank in ranks if not store.check([f"address/{rank}"])]:
            self._wait(f"--node-rank {', '.join(absent)} did not join")
        threading.Thread(target=self._exchange_failures, daemon=True).start()
        return store.get("address/1").decode() if self.rank == 0 else self.master_addr

    def _open_store(self) -> Store:
        """Connect to the store of node 0 in a thread, because torch's own timeout may not apply."""
        while self.rank > 0 and not _is_listening(self.master_addr, self.master_port):
            self._wait("node 0 does not answer")
        opening: Future[Store] = Future()

        def connect() -> None:
            try:
                store = dist.TCPStore(  # type: ignore[attr-defined]  # torch has no stub
                    self.master_addr,
                    self.master_port,
                    is_master=self.rank == 0,
                    wait_for_workers=False,
                    timeout=self.timeout,
                )
                opening.set_result(store)
            except Exception as error:
                opening.set_exception(error)

        threading.Thread(target=connect, daemon=True).start()
        while not wait([opening], timeout=POLL_SECONDS).done:
            self._wait("no rendezvous answers")
        try:
            self._store = opening.result()
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise FailedProcessError(
                f"--rendezvous {self._endpoint} does not work here: give an address of node 0 and "
                f"a port that is free there ({reason})"
            ) from error
        return self._store

    def _wait(self, problem: str) -> None:
        """Wait a moment for other nodes; raise the problem if it lasts too long."""
        if self._stop.received is not None:
            raise InterruptedRunError(
                "stopped before all nodes had joined", exit_code=self._stop.exit_code or 1
            )
        if time.monotonic() > self._deadline:
            raise FailedProcessError(
                f"{problem} at {self._endpoint} within {self.timeout.total_seconds():.0f} s: start "
                "the same command on each node, and check that they can reach each other"
            )
        time.sleep(POLL_SECONDS)

    def _exchange_failures(self) -> None:
        """Publish this node's failure, and look for one of another node, until it is over.

        It runs in a thread, because requests to the store hang if the network is cut.
        """
        try:
            store = PrefixStore(self.run_id, self._store.clone())  # type: ignore[union-attr]
            while not self._is_over.wait(POLL_SECONDS):
                if (local := self._local_failure) is not None:
                    store.compare_set(_FAILURE, "", json.dumps([str(local), local.exit_code]))
                if store.check([_FAILURE]):
                    self._failure = _parse_failure(store.get(_FAILURE))
                    break
        except dist.DistError:
            self._failure = self._local_failure or FailedProcessError(
                f"node 0 at {self._endpoint} is down: {RESUME}, on all nodes"
            )
        self._has_failure.set()

    def _forward_signal(self, number: int) -> None:
        """Send a signal to the processes of this node, once, and give them time to save."""
        if self._save_by is None:
            self._save_by = time.monotonic() + SAVING_SECONDS
            for worker in self.worker_group.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(worker.id), number)
        elif time.monotonic() > self._save_by:
            raise FailedProcessError(
                f"the processes did not save within {SAVING_SECONDS:.0f} s of "
                f"{signal.Signals(number).name} and were killed: {RESUME}"
            )


def _parse_failure(text: bytes) -> FailedProcessError:
    """Return the failure that a node has published; never with the exit code of a success.

    Anyone who reaches the port can write to the store.
    """
    try:
        published = json.loads(text)
    except (ValueError, RecursionError):
        published = None
    match published:
        case [str(message), int(exit_code)]:
            return FailedProcessError(message, exit_code=exit_code if 0 < exit_code < 256 else 1)
    return FailedProcessError(f"another node has ended the run without a reason: {RESUME}")


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _address_towards(host: str) -> str:
    """Return this node's address on the route to a host; empty if there is no route."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # a datagram socket sends nothing here
                return str(probe.getsockname()[0])
    return ""


def _interface_towards(host: str) -> str | None:
    """Return the network interface on the route to a host; None if it cannot be found."""
    address = _address_towards(host)
    return _interface_of_ipv6(address) if ":" in address else _interface_of_ipv4(address)


def _interface_of_ipv4(address: str) -> str | None:
    import fcntl  # not part of Python on Windows

    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # the interface has no address, or this is not Linux
                continue
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None


def _interface_of_ipv6(address: str) -> str | None:
    if not _IPV6_ADDRESSES.exists():  # this is not Linux
        return None
    digits = socket.inet_pton(socket.AF_INET6, address).hex()
    lines = map(str.split, _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines())
    return next((line[-1] for line in lines if line[0] == digits), None)
