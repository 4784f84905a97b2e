"""A watchdog over the processes of a run: ends all, and names the one that makes no progress.

The time limit of collectives cannot: they know neither which rank they wait for nor what it does.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from tfm.disk.files import write_text
from tfm.machine.interruption import RESUME, end_process
from tfm.machine.world import World

_MAX_INTERVAL_SECONDS = 1.0
_SECONDS_TO_WRITE = 5.0
_INTERVALS_PER_TIMEOUT = 10
_INTERVALS_TO_NOTICE = 4  # before rank 0 ends, for other ranks to read why


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """The status of a process, as it posts it in the store for the others."""

    rank: int
    host: str = ""
    pid: int = 0
    post: int = 0  # number of this post
    idle_seconds: float = 0.0  # since the last heartbeat
    phase: str = ""  # the work that the last heartbeat announced
    waits: bool = False  # for other processes, in this phase
    left: bool = False  # the process has ended normally
    cause: str = ""  # of rank 0: why it ends the run
    seen_at: float = 0.0  # when the observer first saw this post, in seconds of its clock

    def describe(self, *, now: float) -> str:
        """Describe a process that makes no progress, as seen at `now` on the observer's clock."""
        silence = now - self.seen_at
        return (
            f"rank {self.rank} (host {self.host}, process {self.pid}) has made no progress for "
            f"{self.idle_seconds + silence:.0f} s, last reported {silence:.0f} s ago: "
            f"it {'waits for other ranks' if self.waits else 'is'} in {self.phase}"
        )


def stalled_ranks(
    statuses: Iterable[RankStatus], *, now: float, timeout_seconds: float
) -> list[RankStatus]:
    """Return the processes that keep the others from making progress, at `now` of the clock.

    A waiting rank is not blamed while another makes progress. If all wait, all are returned.
    """
    present = [status for status in statuses if not status.left]
    idle = [status for status in present if status.idle_seconds >= timeout_seconds]
    return (
        [status for status in present if now - status.seen_at >= timeout_seconds]
        or [status for status in idle if not status.waits]
        or (idle if len(idle) == len(present) else [])
    )


class Watchdog:
    """A context manager that ends the run if one of its processes makes no progress.

    Open it in the main thread of each process, and call `heartbeat` regularly: everything between
    two calls has to fit in the timeout, such as compiling, the first use of a GPU, or saving.

    A thread posts the status of this process in `store`, the store of the process group (None for a
    single process). Rank 0 reads the status of all processes and decides; the others read rank 0's
    status. Another thread watches, because requests to a store that is down have no time limit.
    `fail` ends this process. Before, each process writes its last collectives, which torch's flight
    recorder keeps, into `record_dir`, if there is one.
    """

    def __init__(
        self,
        world: World,
        store: Store | None,
        *,
        timeout_seconds: float,
        record_dir: Path | None = None,
        fail: Callable[..., object] = end_process,
    ) -> None:
        self._store: Store = store or dist.HashStore()  # type: ignore[attr-defined]  # no stub
        self._timeout = timeout_seconds
        self._interval = min(_MAX_INTERVAL_SECONDS, timeout_seconds / _INTERVALS_PER_TIMEOUT)
        self._record_dir = record_dir
        self._fail = fail
        # Seconds that this process ran; clocks of different nodes are never compared.
        self._clock = self._contact_at = 0.0
        self._heartbeat = 0.0, "startup", False  # time of the last one, phase, and if it waits
        self._own = RankStatus(rank=world.rank, host=socket.gethostname(), pid=os.getpid())
        # Of the ranks that this one reads.
        self._statuses = [RankStatus(rank=n) for n in range(1 if world.rank else world.size)]
        self._cause = ""  # why this process ends the run
        self._leaving = threading.Event()
        self._exchanging = threading.Thread(target=self._exchange, daemon=True)
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        # A clone, so that requests of different threads do not wait for each other.
        self._store = PrefixStore("watchdog", self._store.clone())  # type: ignore[attr-defined]
        self._exchanging.start()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._cause:
            self._watching.join()  # it ends this process
        self._leaving.set()
        self._exchanging.join(_INTERVALS_TO_NOTICE * self._interval)  # the store may be lost

    def heartbeat(self, phase: str, *, waits: bool = False) -> None:
        """Record that the main thread starts a phase, and whether it waits for other processes.

        It is cheap enough for many calls per step.
        """
        self._heartbeat = self._clock, phase, waits

    def _exchange(self) -> None:
        """Post the status of this process, and read the status of others, at each interval."""
        while not self._leaving.wait(self._interval):
            with contextlib.suppress(RuntimeError):  # `_watch` notices a store that is lost
                self._post()
                self._read()
                self._contact_at = self._clock
        with contextlib.suppress(RuntimeError):  # the store may have ended already
            self._post(left=True)

    def _post(self, *, left: bool = False) -> None:
        heartbeat_at, phase, waits = self._heartbeat
        self._own = replace(
            self._own,
            post=self._own.post + 1,
            idle_seconds=self._clock - heartbeat_at,
            phase=phase,
            waits=waits,
            left=left,
            cause=self._cause,
        )
        self._store.set(str(self._own.rank), json.dumps(asdict(self._own)))

    def _read(self) -> None:
        for post in self._store.multi_get([str(status.rank) for status in self._statuses]):
            status = RankStatus(**json.loads(post))
            if status.post != self._statuses[status.rank].post:
                self._statuses[status.rank] = replace(status, seen_at=self._clock)

    def _watch(self) -> None:
        """Run the clock; end this process if the run has to end."""
        before = time.monotonic()
        while not self._leaving.wait(self._interval):
            now = time.monotonic()
            # The time while this process itself was stopped does not count.
            self._clock += min(now - before, 2 * self._interval)
            before = now
            if cause := self._find_cause():
                self._cause = cause
                # The disk may be what has stalled.
                writing = threading.Thread(target=self._write_collectives, daemon=True)
                writing.start()
                writing.join(_SECONDS_TO_WRITE)
                if self._own.rank == 0:
                    time.sleep(_INTERVALS_TO_NOTICE * self._interval)
                # Rank 0 reports the cause; rank 1 does if rank 0 cannot.
                reporter = 0 if self._statuses[0].cause else 1
                self._fail(cause, is_consequence=self._own.rank > reporter)
                return

    def _write_collectives(self) -> None:
        if self._record_dir is None:
            return
        with contextlib.suppress(OSError):
            self._record_dir.mkdir(exist_ok=True)
            write_text(self._record_dir / f"rank-{self._own.rank}.json", recorded_collectives())

    def _find_cause(self) -> str:
        """Return why the run has to end; empty while it makes progress."""
        rank, host, first = self._own.rank, self._own.host, self._statuses[0]
        if rank and first.cause:
            return first.cause
        silence = self._clock - self._contact_at
        if silence >= self._timeout:
            return (
                f"rank {rank} (host {host}) got no answer from the rendezvous for {silence:.0f} s: "
                f"the host of rank 0 ({first.host}) or the network is down; {RESUME}"
            )
        # Rank 0 judges all ranks; the others judge only whether rank 0 is silent.
        statuses = [replace(first, idle_seconds=0.0)] if rank else self._statuses
        now = self._contact_at
        stalled = stalled_ranks(statuses, now=now, timeout_seconds=self._timeout)
        found = [status.describe(now=now) for status in stalled]
        if found and self._record_dir is not None:
            found.append(f"the last collectives of each rank are in {self._record_dir}")
        return "; ".join([*found, f"{RESUME}, or raise --stall-minutes"]) if found else ""


def recorded_collectives() -> str:
    """Return the last collectives of this process, by library, as a JSON object."""
    recorders = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
    found = {}
    for library, name in recorders.items():
        if (dump := getattr(_distributed_c10d, name, None)) is not None:
            found[library] = json.loads(dump())
    return json.dumps(found)
