"""Where the launchers of a run meet, and hear of each other: a store at machine 0.

The processes of the run meet in the same store: it outlives any of them.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import threading
import time
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from tfm.distributed.bounded_store import POLL_SECONDS, BoundedStore, answer_within
from tfm.distributed.failures import GO_ON, FailedProcessError
from tfm.distributed.interruption import SAVING_SECONDS, InterruptedRunError, StopRequests
from tfm.distributed.layout import Layout
from tfm.errors import UsageError
from tfm.reporting import say

# Elastic gives the other processes of a machine half a minute to end before it tells of a failure.
NEWS_SECONDS = 45.0
# Every launcher that may have news to tell gives a sign of life each second.
_PULSE_SECONDS = 1.0
_SILENCE_SECONDS = 5.0
_FAREWELL_SECONDS = 3.0
_STORE_TIMEOUT = timedelta(seconds=30)
_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # Linux: what is the IPv4 address of this network interface?
# The keys in the store.
_NODES, _PULSE, _FAILURE, _GONE = "nodes", "pulse", "failure", "gone"


class Meeting(RendezvousHandler):
    """How elastic's agent gets to know the others, and what this machine does between two looks.

    Ranks follow from the number of the machine: the same command gives the same run. Elastic asks
    again and again whether more machines have come: that is when signals are passed on to the
    processes, and when other machines are heard.

    Args:
        layout: The processes that are asked for.
        stop: Signals to this launcher.
        join_seconds: How long to wait for the other machines.

    Attributes:
        group: The processes of this machine, as the agent has them.
    """

    group: WorkerGroup

    def __init__(self, layout: Layout, stop: StopRequests, *, join_seconds: float) -> None:
        self._layout = layout
        self._place = f"{layout.host}:{layout.port}"
        self._stop = stop
        self._join_seconds = join_seconds
        self._deadline = time.monotonic() + join_seconds
        self._passed_on_at: float | None = None
        self._store: Store | None = None
        self._has_no_news = threading.Event()
        self._pulse: threading.Thread | None = None

    def get_backend(self) -> str:
        """A name for elastic's records."""
        return "tfm"

    def get_run_id(self) -> str:
        """A name for elastic's records."""
        return "run"

    @property
    def use_agent_store(self) -> bool:
        """Whether the processes are to meet in this store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other launchers.

        Raises:
            UsageError: They contradict each other.
            FailedProcessError: They do not come.
            InterruptedRunError: A signal came first.
        """
        layout = self._layout
        host, port = layout.host, layout.port
        if layout.nodes > 1:
            say(f"machine {layout.node_rank} waits for the others at {self._place}")
            self._store = self._open_store()
            peer = self._meet_others(self._store)
            self._pulse = threading.Thread(target=self._beat, args=(self._store,), daemon=True)
            self._pulse.start()
        else:
            host = peer = _LOOPBACK
            port, self._store = _own_store(host)
        if interface := _interface_towards(peer):
            # By itself, gloo takes the one that the host's name leads to, which may be none.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        return RendezvousInfo(
            self._store,
            layout.node_rank,
            layout.nodes,
            RendezvousStoreInfo(host, port),
        )

    def num_nodes_waiting(self) -> int:
        """No machine ever joins later; this is the time to pass signals on, and to listen.

        Raises:
            FailedProcessError: Another machine has failed, or machine 0 does not answer, or the
                processes do not stop.
        """
        self._pass_signal_on()
        if self._store is not None and self._layout.nodes > 1 and (news := _news(self._store)):
            raise news
        return 0

    def agree(self, error: FailedProcessError, *, is_consequence: bool) -> FailedProcessError:
        """Tell the other machines of a failure here, or hear which came first.

        Args:
            error: What failed here.
            is_consequence: Whether the cause is elsewhere, and somebody else may know it.

        Returns:
            What the user is told on all machines.
        """
        store, rank = self._store, self._layout.node_rank
        if store is None or self._layout.nodes == 1:
            return error
        message = f"machine {rank} ({socket.gethostname()}): {error}"
        try:
            if is_consequence:
                self._wait_for_cause(store)
            store.compare_set(_FAILURE, "", json.dumps([message, error.exit_code]))
            return _news(store) or error
        except FailedProcessError as loss:
            return loss if is_consequence else error

    def leave(self) -> None:
        """Let the others hear what there is to hear before the store ends with machine 0."""
        store, layout = self._store, self._layout
        if store is None or layout.nodes == 1:
            return
        deadline = time.monotonic() + _FAREWELL_SECONDS
        self._has_no_news.set()
        with contextlib.suppress(FailedProcessError):
            gone = store.add(_GONE, 1)
            while layout.node_rank == 0 and gone < layout.nodes and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                gone = store.add(_GONE, 0)
        if self._pulse is not None:
            self._pulse.join(_PULSE_SECONDS)

    def is_closed(self) -> bool:
        """Of no meaning where no machine joins later."""
        return False

    def set_closed(self) -> None:
        """Of no meaning where no machine joins later."""

    def shutdown(self) -> bool:
        """Of no meaning where no machine joins later."""
        return True

    def _pass_signal_on(self) -> None:
        number = self._stop.received
        if number is None:
            return
        now = time.monotonic()
        if self._passed_on_at is None:
            self._passed_on_at = now
            for worker in self.group.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(worker.id), number)
        elif now - self._passed_on_at > SAVING_SECONDS:
            raise FailedProcessError(
                f"the processes have not saved within {SAVING_SECONDS:.0f} s of "
                f"{signal.Signals(number).name} and are ended: {GO_ON}"
            )

    def _beat(self, store: Store) -> None:
        """Let the others know that it is worth waiting for news from this machine."""
        with contextlib.suppress(FailedProcessError):
            while not self._has_no_news.wait(_PULSE_SECONDS):
                store.add(_PULSE, 1)

    def _wait_for_cause(self, store: Store) -> None:
        """Wait until another machine tells of a failure, or none is left that may."""
        self._has_no_news.set()
        deadline = time.monotonic() + NEWS_SECONDS
        pulses, silence = 0, 0.0
        while not store.check([_FAILURE]) and time.monotonic() < deadline:
            before, pulses = pulses, store.add(_PULSE, 0)
            silence = 0 if pulses != before else silence + POLL_SECONDS
            if silence > _SILENCE_SECONDS:
                return
            time.sleep(POLL_SECONDS)

    def _open_store(self) -> Store:
        """The store at machine 0, which opens it."""
        layout = self._layout
        is_host = layout.node_rank == 0
        while not (is_host or _answers(layout.host, layout.port)):
            self._wait("machine 0 does not answer")
        timeout = min(_STORE_TIMEOUT, timedelta(seconds=self._join_seconds))
        tcp_store = partial(
            dist.TCPStore,  # type: ignore[attr-defined]  # torch has no stub
            layout.host,
            layout.port,
            is_master=is_host,
            wait_for_workers=False,
            timeout=timeout,
        )
        try:
            store = answer_within(timeout.total_seconds(), tcp_store)
        except (RuntimeError, ValueError, TimeoutError) as error:  # torch's own errors among them
            reason = " ".join(str(error).partition("\n")[0].split())
            raise FailedProcessError(
                f"--rendezvous {self._place} does not work here: it must lead to machine 0 and to "
                f"a port that is free there ({reason})"
            ) from error
        return BoundedStore(store, self._place, timeout)

    def _meet_others(self, store: Store) -> str:
        """Wait until all machines are there; return the address of another one."""
        layout = self._layout
        keys = [f"machine/{rank}" for rank in range(layout.nodes)]
        own = f"{socket.gethostname()} {_own_address_towards(layout.host)} {secrets.token_hex()}"
        nodes = store.compare_set(_NODES, "", str(layout.nodes)).decode()
        if nodes != str(layout.nodes):
            raise UsageError(f"--nodes is {layout.nodes} here, but {nodes} on other machines")
        present = store.compare_set(keys[layout.node_rank], "", own).decode()
        if present != own:
            raise UsageError(
                f"--node-rank {layout.node_rank} is at {self._place} already, on host "
                f"{present.split()[0]}: give each machine its own"
            )
        while absent := [str(rank) for rank, key in enumerate(keys) if not store.check([key])]:
            self._wait(f"--node-rank {', '.join(absent)} did not come")
        if layout.node_rank > 0:
            return layout.host
        return store.get(keys[1]).decode().split()[1]

    def _wait(self, problem: str) -> None:
        """Wait a moment for other machines.

        Args:
            problem: What to say if it has been too long.
        """
        if self._stop.received is not None:
            raise InterruptedRunError(
                "stopped before all machines were there", exit_code=self._stop.exit_code or 1
            )
        if time.monotonic() > self._deadline:
            raise FailedProcessError(
                f"{problem} at {self._place} within {self._join_seconds:.0f} s: start the same "
                "command on each machine, and let them reach each other"
            )
        time.sleep(POLL_SECONDS)


def _own_store(host: str) -> tuple[int, Store]:
    """A store on a free port of this machine, which no other can reach."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch has no stub
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return port, store


def _news(store: Store) -> FailedProcessError | None:
    """The failure that ends the run, if a machine has told of one."""
    if not store.check([_FAILURE]):
        return None
    message, exit_code = json.loads(store.get(_FAILURE))
    return FailedProcessError(message, exit_code=exit_code)


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _own_address_towards(host: str) -> str:
    """The address that this machine has for a host; "-" if there is no IPv4 way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 1))  # sends nothing
        except OSError:
            return "-"
        return str(probe.getsockname()[0])


def _interface_towards(host: str) -> str | None:
    """The network interface that leads to a host, where the system can tell."""
    address = _own_address_towards(host)
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none, or this is no Linux
                continue
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None
