"""A watchdog over the processes of a run: if one makes no progress, it ends all and names that one.

Without it, collectives would wait forever for a process that is stuck or on a node that is down.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from tfm.distributed.failures import RESUME, end_process
from tfm.errors import LostPeersError
from tfm.world import World

_MAX_INTERVAL_SECONDS = 1.0
_INTERVALS_PER_TIMEOUT = 10
# The process that reports a stall first gives the others time to notice; they end after it.
_INTERVALS_TO_NOTICE, _INTERVALS_TO_END = 4, 8
# How long to wait for the cause when collectives break; exchanges may be slow on a busy node.
_MAX_INTERVALS_TO_NOTICE = 12
# When collectives break, a rank that has been silent for this long is likely the lost one.
_SILENT_INTERVALS = 2
_REPORTED = "reported"
_MAX_CALLS = 4
_PACKAGE_DIR = Path(__file__).parents[1]
_STOPPED = "is stopped by a signal"
# States of Linux in which a process makes no progress.
_STATES = {
    "T": _STOPPED,
    "t": "is stopped by a debugger",
    "D": "waits for a disk or file server",
    "Z": "is dead",
}


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """The status of a process, as it posts it in the store for the others."""

    rank: int
    host: str = ""
    pid: int = 0
    post: int = 0  # number of this post; 0 before the first
    idle_seconds: float = 0.0  # since the last heartbeat
    phase: str = "startup"  # the work that the last heartbeat announced
    waits: bool = False  # for other processes, in this phase
    stack: str = ""
    left: bool = False  # the process has ended normally
    seen_at: float = 0.0  # when the observer first saw this post, in seconds of its clock

    def describe(self, *, now: float, here: str) -> str:
        """Describe which process it is, for how long it has made no progress, where, and why.

        The observer, whose clock shows `now`, can look up only processes of its own host, `here`.
        """
        silence = max(0.0, now - self.seen_at)
        if not self.post:
            return f"rank {self.rank} has not started after {silence:.0f} s"
        state = process_state(self.pid) if self.host == here else None
        return (
            f"rank {self.rank} (host {self.host}, process {self.pid}) has made no progress for "
            f"{self.idle_seconds + silence:.0f} s, last reported {silence:.0f} s ago"
            f"{f' and {state}' if state else ''}: "
            f"it {'waits for other ranks' if self.waits else 'is'} in {self.phase}, at {self.stack}"
        )


def stalled_ranks(
    statuses: Iterable[RankStatus], *, now: float, timeout_seconds: float
) -> list[RankStatus]:
    """Return the processes that keep the others from making progress.

    A waiting rank is not blamed while another makes progress. If all wait, all are returned. `now`
    is the time when the store was last read, in seconds of the observer's clock.
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

    One thread posts the status of this process and reads those of the others. The first process to
    see a stalled rank reports it; the others end quietly. Another thread ends this process if the
    store does not answer within the timeout, because requests to it have no time limit.

    `store` is that of the process group; None for a single process. `fail` ends this process: it is
    called in a thread with the message to report, or with None if another process reports it.
    """

    def __init__(
        self,
        world: World,
        store: Store | None,
        *,
        timeout_seconds: float,
        fail: Callable[[str | None], None] = end_process,
    ) -> None:
        self._world = world
        self._store: Store = store or dist.HashStore()  # type: ignore[attr-defined]  # no stub
        self._timeout = timeout_seconds
        self._interval = min(_MAX_INTERVAL_SECONDS, timeout_seconds / _INTERVALS_PER_TIMEOUT)
        self._fail = fail
        # Seconds for which this process ran; clocks of different nodes are never compared.
        self._clock = self._heartbeat_at = self._contact_at = 0.0
        self._num_exchanges = 0
        self._own = RankStatus(rank=world.rank, host=socket.gethostname(), pid=os.getpid())
        self._statuses = {rank: RankStatus(rank=rank) for rank in range(world.size)}
        self._leaving = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()  # set only if `fail` returns, as in a test
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._watch_ranks, self._watch_store)
        ]

    def __enter__(self) -> "Watchdog":
        self._main = threading.get_ident()
        # A clone, so that requests of different threads do not wait for each other.
        self._store = PrefixStore("watchdog", self._store.clone())  # type: ignore[attr-defined]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        cause = self._find_cause() if isinstance(error, LostPeersError) else None
        if self._ending.is_set():
            self._ended.wait()
        self._leaving.set()
        for thread in self._threads:
            thread.join(_INTERVALS_TO_NOTICE * self._interval)
        if cause:
            raise LostPeersError(cause) from error

    def heartbeat(self, phase: str, *, waits: bool = False) -> None:
        """Record that the main thread starts a phase, and whether it waits for other processes.

        It is cheap enough for many calls per step.
        """
        self._heartbeat_at = self._clock
        self._own = replace(self._own, phase=phase, waits=waits)

    def _watch_store(self) -> None:
        """Run the clock; end this process if the store stops answering."""
        now = time.monotonic()
        while not self._leaving.wait(self._interval) and not self._ending.is_set():
            before, now = now, time.monotonic()
            # Time for which this process was itself stopped does not count.
            self._clock += min(now - before, 2 * self._interval)
            if self._clock - self._contact_at >= self._timeout:
                # Without the store, they cannot agree on who reports: one rank per node does.
                reports = self._world.local_rank == 0 or self._world.rank == 1
                self._end(self._describe_lost_store() if reports else None)

    def _watch_ranks(self) -> None:
        """Exchange statuses at each interval; end this process if a rank is stalled."""
        while not self._leaving.wait(self._interval) and not self._ending.is_set():
            is_reported = False
            with contextlib.suppress(RuntimeError):  # `_watch_store` notices a lost store
                is_reported = self._exchange()
            stalled = stalled_ranks(
                self._statuses.values(), now=self._contact_at, timeout_seconds=self._timeout
            )
            if is_reported:
                self._end(None)
            elif stalled:
                description = self._describe(stalled, now=self._contact_at)
                message = f"{description}; if it is only slow, raise --stall-minutes"
                is_first = True
                with contextlib.suppress(RuntimeError):  # without a store, nobody else reports
                    is_first = self._store.add(_REPORTED, 1) == 1
                self._end(message if is_first else None)
        if not self._ending.is_set():
            with contextlib.suppress(RuntimeError):  # the store may have ended already
                self._post(left=True)

    def _exchange(self) -> bool:
        """Post and read statuses; return whether a process has reported a stalled rank."""
        self._post()
        others = [rank for rank in self._statuses if rank != self._world.rank]
        # Reading a missing key would block.
        posted = [n for n in others if self._statuses[n].post or self._store.check([str(n)])]
        posts = self._store.multi_get([str(rank) for rank in posted]) if posted else []
        is_reported = self._store.check([_REPORTED])
        self._contact_at = self._clock
        for status in (RankStatus(**json.loads(post)) for post in posts):
            if status.post != self._statuses[status.rank].post:
                self._statuses[status.rank] = replace(status, seen_at=self._contact_at)
        self._num_exchanges += 1
        return is_reported

    def _post(self, *, left: bool = False) -> None:
        rank = self._world.rank
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - no public name
        self._statuses[rank] = status = replace(
            self._own,
            post=self._statuses[rank].post + 1,
            idle_seconds=self._clock - self._heartbeat_at,
            stack=format_stack(frame),
            left=left,
            seen_at=self._clock,
        )
        self._store.set(str(rank), json.dumps(asdict(status)))

    def _find_cause(self) -> str | None:
        """Describe the silent ranks when collectives break; None if there are none.

        If the run is being ended, its cause is reported within a few exchanges.
        """
        before = self._num_exchanges
        for _ in range(_MAX_INTERVALS_TO_NOTICE):
            is_ending = self._ending.wait(self._interval)
            if is_ending or self._num_exchanges >= before + _INTERVALS_TO_NOTICE:
                break
        if self._num_exchanges == before:
            return self._describe_lost_store()
        since = self._contact_at - _SILENT_INTERVALS * self._interval
        silent = [s for s in self._statuses.values() if not s.left and s.seen_at <= since]
        return self._describe(silent, now=self._contact_at) if silent else None

    def _describe(self, statuses: Iterable[RankStatus], *, now: float) -> str:
        described = [status.describe(now=now, here=self._own.host) for status in statuses]
        return "; ".join([*described, RESUME])

    def _describe_lost_store(self) -> str:
        """Describe the loss of the store, which is in rank 0 or its launcher."""
        return (
            f"rank {self._world.rank} (host {self._own.host}, process {self._own.pid}) got no "
            f"answer from the rendezvous for {self._clock - self._contact_at:.0f} s: a process, a "
            f"node or the network is down; {self._describe([self._statuses[0]], now=self._clock)}"
        )

    def _end(self, message: str | None) -> None:
        """End this process, with a message unless another one reports."""
        self._ending.set()
        for status in self._statuses.values():
            # Continue the stopped processes of this node: they have to notice that the run ends.
            if message and status.host == self._own.host and process_state(status.pid) == _STOPPED:
                with contextlib.suppress(OSError):
                    os.kill(status.pid, signal.SIGCONT)
        time.sleep((_INTERVALS_TO_NOTICE if message else _INTERVALS_TO_END) * self._interval)
        self._fail(message)
        self._ended.set()


def format_stack(frame: FrameType | None) -> str:
    """Return the innermost call of a thread, and the calls of this package that led to it."""
    calls: list[str] = []
    while frame is not None and len(calls) < _MAX_CALLS:
        path = Path(frame.f_code.co_filename)
        is_ours = _PACKAGE_DIR in path.parents
        if is_ours or not calls:
            shown = path.relative_to(_PACKAGE_DIR.parent) if is_ours else "/".join(path.parts[-2:])
            calls.append(f"{shown}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " ← ".join(calls) or "the end of its main thread"


def process_state(pid: int) -> str | None:
    """Return why a process of this node does not run; None if it runs or Linux does not tell."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "is gone"
    # The state comes after the program's name in parentheses, which may itself contain some.
    return _STATES.get(status.rpartition(")")[2].split()[0])
