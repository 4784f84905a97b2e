"""What the launchers of several nodes tell each other: when they start, and why one has ended."""

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from tfm.errors import LostPeersError, TrainingError
from tfm.machine.processes import Placement
from tfm.reporting import say

_POLL_SECONDS = 2.0
# After another node has ended, the processes of this node have this time to end before they are
# stopped.
_GRACE_SECONDS = 10.0
_CAUSE_SECONDS = 3.0  # to connect, to wait for the cause, and to let the others read it
_MEETING_POLL_SECONDS = 0.2
_ATTEMPT = "attempt"  # the key of the current attempt; the others are below its name
_COMPLETE, _ENDED, _CAUSE = "complete", "ended", "cause"


class Nodes:
    """The launchers of the nodes of a run, which start its processes together.

    They share a store, which the launcher of node 0 serves until it ends. There it names the
    current attempt, by its number and a random word. A launcher that finds itself in the current
    attempt was started again: it ends the attempt for all nodes, and waits for the next one.

    Args:
        placement: The number of nodes, the index of this one, and the address of the store.
        join_seconds: The limit of each wait for the other nodes.
    """

    def __init__(self, placement: Placement, *, join_seconds: float) -> None:
        self._endpoint = placement.rendezvous
        host, _, port = self._endpoint.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._num_nodes, self._node_rank = placement.nodes, placement.node_rank
        self._join_seconds = join_seconds
        self._server: Any = None

    def meet(self, number: int) -> "Attempt":
        """Wait until all nodes are ready for an attempt, whose number node 0 decides."""
        say(f"node {self._node_rank} waits for the other nodes at {self._endpoint}")
        own_name = f"{number}-{secrets.token_hex(8)}"
        deadline, reason = time.monotonic() + self._join_seconds, ""
        while time.monotonic() < deadline:
            try:
                store = _connect(self._address) if self._node_rank else self._serve(own_name)
                name = _current_attempt(store)
                if name and self._has_joined(PrefixStore(name, store)):
                    return Attempt(self._address, name, node_rank=self._node_rank)
                reason = "not all have started"
            except (OSError, dist.DistError) as error:
                reason = str(error).partition("\n")[0]
            time.sleep(_MEETING_POLL_SECONDS)
        raise TrainingError(
            f"the nodes did not meet at {self._endpoint} within {self._join_seconds:g} s "
            f"({self._missing() or reason}): start the same command on each node, with its own "
            "--node-rank from 0, and check that --rendezvous is an address of node 0 with a free "
            "port, which the others can reach"
        )

    def _serve(self, name: str) -> Any:
        """Serve the store, and name the current attempt in it."""
        if self._server is None:
            self._server = dist.TCPStore(  # type: ignore[attr-defined]  # no stub
                *self._address,
                is_master=True,
                timeout=timedelta(seconds=_CAUSE_SECONDS),
                wait_for_workers=False,
                multi_tenant=True,  # torch's launcher asks for the same one
            )
        self._server.set(_ATTEMPT, name)
        return self._server

    def _has_joined(self, attempt: Any) -> bool:
        """Say that this node is ready; return whether all are, and this node for the first time."""
        if self._node_rank:
            attempt.set(_ready(self._node_rank), "")
        elif attempt.check([_ready(node) for node in range(1, self._num_nodes)]):
            attempt.set(_COMPLETE, "")
        if not attempt.check([_COMPLETE]):
            return False
        if attempt.add(f"joined {self._node_rank}", 1) > 1:
            attempt.set(_ENDED, "")
            return False
        return True

    def _missing(self) -> str:
        """Return which nodes have not come, if this is node 0; else an empty text."""
        if self._server is None:
            return ""
        attempt = PrefixStore(_current_attempt(self._server), self._server)
        missing = [n for n in range(1, self._num_nodes) if not attempt.check([_ready(n)])]
        some = f", such as node {missing[0]}" if missing else ""
        return f"{len(missing)} of {self._num_nodes} are missing{some}"


class Attempt:
    """A context manager that ends this node's launcher soon after another node's has ended.

    Its processes notice that by themselves, unless one is frozen (SIGSTOP, a dead file server). If
    they still run after a while, the launcher gets a SIGTERM. If the launcher fails because
    processes of other nodes were lost, the error of the node that failed first is raised instead;
    so it is after a SIGTERM if a restart does not help.

    Attributes:
        name: A name that no other attempt has.
        number: How often the processes of all nodes have been started before.
        have_ended: Whether this launcher was stopped because another one had ended.
    """

    def __init__(self, address: tuple[str, int], name: str, *, node_rank: int) -> None:
        self.name, self.number = name, int(name.partition("-")[0])
        self.have_ended = False
        self._address = address
        self._node_rank = node_rank
        self._is_leaving = threading.Event()

    def __enter__(self) -> "Attempt":
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_leaving.set()
        cause: TrainingError | None = None
        # Node 0 has ended, or no node has given a cause.
        with contextlib.suppress(OSError, dist.DistError):
            if error is not None:
                attempt = PrefixStore(self.name, _connect(self._address))
                attempt.set(_ENDED, "")
                if isinstance(error, LostPeersError) or self.have_ended:
                    cause = _error_in(attempt.get(_CAUSE))
                elif isinstance(error, TrainingError):
                    attempt.set(_CAUSE, json.dumps([str(error), error.restart_helps]))
        if isinstance(error, TrainingError) and self._node_rank == 0:
            time.sleep(_CAUSE_SECONDS)
        if cause and not (self.have_ended and cause.restart_helps):
            raise cause from None

    def _follow(self) -> None:
        """Stop this launcher if another one has ended."""
        store = None
        while not self._is_leaving.wait(_POLL_SECONDS):
            try:
                store = store or _connect(self._address)
                if _current_attempt(store) != self.name:
                    break
                if PrefixStore(self.name, store).check([_ENDED]):
                    break
            except dist.DistError:
                store = None
            except ConnectionRefusedError:  # node 0 has ended
                break
            except OSError:  # the network is down, which the processes notice
                continue
        if not self._is_leaving.wait(_GRACE_SECONDS):
            self.have_ended = True
            os.kill(os.getpid(), signal.SIGTERM)


def _connect(address: tuple[str, int]) -> Any:
    """Connect to the store; raise OSError or DistError if that fails."""
    # torch would log at length that nobody listens.
    socket.create_connection(address, _CAUSE_SECONDS).close()
    return dist.TCPStore(  # type: ignore[attr-defined]  # no stub
        *address, timeout=timedelta(seconds=_CAUSE_SECONDS), wait_for_workers=False
    )


def _current_attempt(store: Any) -> str:
    """Return the name of the current attempt; empty if node 0 has not named it yet."""
    return store.get(_ATTEMPT).decode() if store.check([_ATTEMPT]) else ""


def _ready(node: int) -> str:
    """Return the key that a node sets when it is ready."""
    return f"ready {node}"


def _error_in(cause: bytes) -> TrainingError:
    """Return the error of the node that failed first."""
    message, restart_helps = json.loads(cause)
    error = TrainingError(message)
    error.restart_helps = restart_helps
    return error
