"""The launchers of a run's nodes tell each other when one of them ends early, and why."""

import contextlib
import os
import signal
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

    def __init__(self, endpoint: str, *, node_rank: int, join_seconds: int) -> None:
        self.have_ended = False
        self._host, _, self._port = endpoint.rpartition(":")
        self._node_rank = node_rank
        self._join_seconds = join_seconds
        self._is_leaving = threading.Event()

    def __enter__(self) -> "OtherNodes":
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_leaving.set()
        cause = b""
        with contextlib.suppress(dist.DistError):  # node 0 has ended, or none has given a cause
            if error is not None:
                store = self._connect(_CAUSE_SECONDS)
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
        """Stop this launcher if another one has ended, or the store with node 0."""
        with contextlib.suppress(dist.DistError):
            store = self._connect(self._join_seconds)
            while not store.check([_ENDED]):
                if self._is_leaving.wait(_POLL_SECONDS):
                    return
        if not self._is_leaving.wait(_GRACE_SECONDS):
            self.have_ended = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _connect(self, seconds: float) -> Any:
        return dist.TCPStore(  # type: ignore[attr-defined]  # no stub
            self._host.strip("[]"), int(self._port), timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )  # fmt: skip
