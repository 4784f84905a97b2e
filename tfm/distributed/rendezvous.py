"""torchrun's static rendezvous, in which launchers also pass on signals and share a failure."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import threading
import time
from concurrent.futures import Future, wait

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from tfm.distributed.failures import RESUME, FailedProcessError
from tfm.distributed.interruption import SAVING_SECONDS, InterruptedRunError, StopRequests
from tfm.distributed.layout import Layout
from tfm.errors import UsageError
from tfm.reporting import say

POLL_SECONDS = 0.1
# How long a launcher whose processes have only lost the others waits to hear why.
_CAUSE_SECONDS = 15.0
# How long the store outlives a failure, so that the other machines can read it there.
_FAREWELL_SECONDS = 2.0
_LOOPBACK = "127.0.0.1"
_FAILURE = "failure"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network interface


class Rendezvous(StaticTCPRendezvous):
    """Where the launchers of a run meet: a store at machine 0, which their processes use too.

    Ranks follow from the node rank. Elastic's agent calls `num_nodes_waiting` between two looks at
    its processes; that is when they are passed a signal, or a failure elsewhere ends them.

    Args:
        layout: The processes that are asked for. A single machine meets on a free port of its own.
        stop: Signals to this launcher.
        join_seconds: How long to wait for the other machines.

    Attributes:
        worker_group: The processes of this machine, as the agent has them.
    """

    worker_group: WorkerGroup

    def __init__(self, layout: Layout, stop: StopRequests, *, join_seconds: int) -> None:
        super().__init__(
            layout.host, layout.port, layout.node_rank, layout.nodes, "tfm", join_seconds
        )
        self._endpoint = f"{layout.host}:{layout.port}"
        self._stop = stop
        self._deadline = time.monotonic() + join_seconds
        self._save_by: float | None = None
        self._own_failure: FailedProcessError | None = None
        self._failure: FailedProcessError | None = None
        self._has_failure = threading.Event()
        self._is_over = threading.Event()

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other launchers.

        Raises:
            UsageError: They contradict each other.
            FailedProcessError: They do not meet in time.
            InterruptedRunError: A signal came first.
        """
        peer = _LOOPBACK
        if self.world_size == 1:
            # Only this machine can reach it, and nobody can take the port in between.
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
            say(f"machine {self.rank} waits for the others at {self._endpoint}")
            peer = self._meet_others()
        if interface := _interface_towards(peer):
            # By default gloo takes the interface of the host name, which may not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        return super().next_rendezvous()

    def num_nodes_waiting(self) -> int:
        """Return 0, as no machine joins later; pass a signal on, and raise a failure elsewhere.

        Raises:
            FailedProcessError: Another machine has failed, machine 0 is gone, or the processes do
                not stop.
        """
        if self._stop.received is not None:
            self._pass_on(self._stop.received)
        if self._failure is not None:
            raise self._failure
        return 0

    def share(self, error: FailedProcessError, *, is_consequence: bool) -> FailedProcessError:
        """Return the first failure of all machines, which may be this one.

        Args:
            error: The failure of this machine.
            is_consequence: Whether its cause is elsewhere.
        """
        if self.world_size == 1:
            return error
        if not is_consequence:
            message = f"machine {self.rank} ({socket.gethostname()}): {error}"
            self._own_failure = FailedProcessError(message, exit_code=error.exit_code)
        self._has_failure.wait(_CAUSE_SECONDS if is_consequence else _FAREWELL_SECONDS)
        return self._failure or self._own_failure or error

    def leave(self) -> None:
        """Keep the store of machine 0 until the others have had time to read a failure there."""
        if self._failure is not None and self.rank == 0:
            time.sleep(_FAREWELL_SECONDS)
        self._is_over.set()

    def _meet_others(self) -> str:
        """Wait for the other machines; return the address of one of them."""
        nodes = str(self.world_size)
        store = PrefixStore(self.run_id, self._open_store())
        if (other := store.compare_set("nodes", "", nodes).decode()) != nodes:
            raise UsageError(f"--nodes is {nodes} here, but {other} on other machines")
        if store.add(f"node/{self.rank}", 1) > 1:
            raise UsageError(
                f"--node-rank {self.rank} is at {self._endpoint} already: give each machine its own"
            )
        store.set(f"address/{self.rank}", _address_towards(self.master_addr))
        ranks = range(self.world_size)
        while absent := [str(rank) for rank in ranks if not store.check([f"address/{rank}"])]:
            self._wait(f"--node-rank {', '.join(absent)} did not come")
        threading.Thread(target=self._exchange_failures, daemon=True).start()
        return store.get("address/1").decode() if self.rank == 0 else self.master_addr

    def _open_store(self) -> Store:
        """Return the store of machine 0, opened in a thread: torch has no limit on its answer."""
        while self.rank > 0 and not _answers(self.master_addr, self.master_port):
            self._wait("machine 0 does not answer")
        opening: Future[Store] = Future()
        threading.Thread(target=self._open, args=(opening,), daemon=True).start()
        while not wait([opening], timeout=POLL_SECONDS).done:
            self._wait("no rendezvous answers")
        try:
            self._store = opening.result()
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise FailedProcessError(
                f"--rendezvous {self._endpoint} does not work here: it must be an address of "
                f"machine 0 and a port that is free there ({reason})"
            ) from error
        return self._store

    def _open(self, opening: "Future[Store]") -> None:
        try:
            opening.set_result(
                dist.TCPStore(  # type: ignore[attr-defined]  # torch has no stub
                    self.master_addr,
                    self.master_port,
                    is_master=self.rank == 0,
                    wait_for_workers=False,
                    timeout=self.timeout,
                )
            )
        except Exception as error:
            opening.set_exception(error)

    def _wait(self, problem: str) -> None:
        """Wait a moment for other machines; raise the problem if it has been too long."""
        if self._stop.received is not None:
            raise InterruptedRunError(
                "stopped before all machines were there", exit_code=self._stop.exit_code or 1
            )
        if time.monotonic() > self._deadline:
            raise FailedProcessError(
                f"{problem} at {self._endpoint} within {self.timeout.total_seconds():.0f} s: start "
                "the same command on each machine, and let them reach each other"
            )
        time.sleep(POLL_SECONDS)

    def _exchange_failures(self) -> None:
        """Publish this machine's failure, and hear of another's.

        This is a thread, as torch's store waits for ever for an answer where a cable is cut.
        """
        store = PrefixStore(self.run_id, self._store.clone())  # type: ignore[union-attr]  # no stub
        try:
            while not self._is_over.wait(POLL_SECONDS):
                if (own := self._own_failure) is not None:
                    store.compare_set(_FAILURE, "", json.dumps([str(own), own.exit_code]))
                if store.check([_FAILURE]):
                    message, exit_code = json.loads(store.get(_FAILURE))
                    self._failure = FailedProcessError(message, exit_code=exit_code)
                    break
        except dist.DistError:
            self._failure = self._own_failure or FailedProcessError(
                f"machine 0 at {self._endpoint} is gone: {RESUME}, on all machines"
            )
        self._has_failure.set()

    def _pass_on(self, number: int) -> None:
        """Send a signal to the processes of this machine, and give them time to save."""
        if self._save_by is None:
            self._save_by = time.monotonic() + SAVING_SECONDS
            for worker in self.worker_group.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(worker.id), number)
        elif time.monotonic() > self._save_by:
            raise FailedProcessError(
                f"the processes have not saved within {SAVING_SECONDS:.0f} s of "
                f"{signal.Signals(number).name} and are ended: {RESUME}"
            )


def _answers(host: str, port: int) -> bool:
    """Return whether a server listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _address_towards(host: str) -> str:
    """Return this machine's IPv4 address on the way to a host; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 1))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _interface_towards(host: str) -> str | None:
    """Return the network interface that leads to a host; None if the system cannot tell."""
    address = _address_towards(host)
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no address, or this is not Linux
                continue
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None
