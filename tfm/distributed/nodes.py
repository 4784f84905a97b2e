"""The launchers of a run's nodes tell each other when one of them ends early, and why."""

import contextlib
import os
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tfm.errors import LostPeersError, TrainingError

_POLL_SECONDS = 2.0
# For which the processes of a node may go on after another node has ended, to end by themselves.
_GRACE_SECONDS = 10.0
_CAUSE_SECONDS = 3.0  # to connect, to wait for the cause, and to let the others read it
_ENDED, _CAUSE = "ended", "cause"  # keys of the store


class OtherNodes:
    """A context of a launcher: it raises what ended it, and is ended if another node has ended.

    Its processes notice that by themselves, unless one is frozen (SIGSTOP, a dead file server). So
    a launcher whose processes go on is stopped as if by SIGTERM.

    The launchers share the store of the rendezvous, which ends with the launcher of node 0.

    Attributes:
        have_ended: Whether this launcher was stopped because another one had ended.
    """

    def __init__(self, endpoint: str, *, node_rank: int) -> None:
        self.have_ended = False
        host, _, port = endpoint.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._node_rank = node_rank
        self._is_leaving = threading.Event()

    def __enter__(self) -> "OtherNodes":
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_leaving.set()
        cause = b""
        # Node 0 has ended, or no node has given a cause.
        with contextlib.suppress(OSError, dist.DistError):
            if error is not None:
                store = self._connect()
                store.set(_ENDED, "")
                if isinstance(error, LostPeersError):
                    cause = store.get(_CAUSE)
                elif isinstance(error, TrainingError):
                    store.set(_CAUSE, str(error))
        if isinstance(error, TrainingError) and self._node_rank == 0:
            time.sleep(_CAUSE_SECONDS)
        if cause:
            raise TrainingError(cause.decode()) from None

    def _follow(self) -> None:
        """Stop this launcher if another one has ended."""
        store, has_connected = None, False
        while not self._is_leaving.wait(_POLL_SECONDS):
            try:
                store = store or self._connect()
                has_connected = True
                if store.check([_ENDED]):
                    break
            except dist.DistError:
                store = None
            except ConnectionRefusedError:
                if has_connected:  # node 0 has ended; before, it has not started
                    break
            except OSError:  # the network is down, which the processes notice
                continue
        if not self._is_leaving.wait(_GRACE_SECONDS):
            self.have_ended = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _connect(self) -> Any:
        """Connect to the store; raise OSError or DistError if that fails."""
        # torch would log at length that nobody listens.
        socket.create_connection(self._address, _CAUSE_SECONDS).close()
        return dist.TCPStore(  # type: ignore[attr-defined]  # no stub
            *self._address, timeout=timedelta(seconds=_CAUSE_SECONDS), wait_for_workers=False
        )
