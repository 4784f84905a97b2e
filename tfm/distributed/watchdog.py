"""A watchdog over the processes of a run: one that makes no progress ends them all, by name.

Nothing else would: a collective waits for a process that is stuck in its data, stopped, or on a
machine that is gone, and says neither for which one nor why.
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
from types import FrameType, TracebackType

from torch.distributed.distributed_c10d import Store

from tfm.distributed.failures import RESUME, end_process
from tfm.errors import LostPeersError
from tfm.world import World

_MAX_INTERVAL_SECONDS = 1.0
_INTERVALS_PER_TIMEOUT = 10
# The process that reports a stall lets the others hear of it; they let it report first.
_INTERVALS_TO_HEAR, _INTERVALS_TO_LEAVE = 4, 8
_MAX_INTERVALS_TO_HEAR = 12
# When collectives break, a rank that has not posted for this long is likely the one that is gone.
_INTERVALS_TO_MISS = 2
_REPORTED = "watchdog/reported"
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
    """Where a process is, as it posts it for the others.

    Attributes:
        post: The number of this post; 0 before the first.
        idle_seconds: How long its main thread had made no progress.
        phase: What its main thread does.
        waits: Whether that waits for other processes.
        stack: The code that its main thread is in.
        left: Whether it has ended its part of the run in order.
        seen_at: When this post was first seen, in seconds of the observer's clock.
    """

    rank: int
    host: str = ""
    pid: int = 0
    post: int = 0
    idle_seconds: float = 0.0
    phase: str = "its start"
    waits: bool = False
    stack: str = ""
    left: bool = False
    seen_at: float = 0.0

    def describe(self, *, now: float, here: str) -> str:
        """Say which process it is, for how long it has made no progress, where, and why.

        Args:
            now: In seconds of the observer's clock.
            here: The observer's machine, whose processes can be looked up.
        """
        silence = max(0.0, now - self.seen_at)
        if not self.post:
            return f"rank {self.rank} has not started for {silence:.0f} s"
        state = process_state(self.pid) if self.host == here else None
        return (
            f"rank {self.rank} (host {self.host}, process {self.pid}) has made no progress for "
            f"{self.idle_seconds + silence:.0f} s, was heard of {silence:.0f} s ago"
            f"{f' and {state}' if state else ''}: "
            f"it {'waits for the others' if self.waits else 'is'} in {self.phase}, at {self.stack}"
        )


def silent_ranks(
    statuses: Iterable[RankStatus], *, now: float, timeout_seconds: float
) -> list[RankStatus]:
    """Return the processes that have posted nothing for this long, though they have not left."""
    return [s for s in statuses if not s.left and now - s.seen_at >= timeout_seconds]


def stalled_ranks(
    statuses: Iterable[RankStatus], *, now: float, timeout_seconds: float
) -> list[RankStatus]:
    """Return the processes that keep the others from making progress.

    A waiting rank is not blamed while another makes progress. If all wait, all are returned.

    Args:
        statuses: The newest of each process.
        now: When the store was last read, in seconds of the observer's clock.
        timeout_seconds: How long a process may make no progress.
    """
    present = [status for status in statuses if not status.left]
    idle = [status for status in present if status.idle_seconds >= timeout_seconds]
    return (
        silent_ranks(present, now=now, timeout_seconds=timeout_seconds)
        or [status for status in idle if not status.waits]
        or (idle if len(idle) == len(present) else [])
    )


class Watchdog:
    """Ends the run if one of its processes makes no progress for a time; a context manager.

    Open it around the work, in the main thread of each process, and call `heartbeat` as the work
    goes on. Whatever lies between two heartbeats has to fit in the timeout: compiling, the first
    use of a GPU, saving; long loops, such as validation, call it in each round.

    One thread posts the status of this process and reads those of the others. The first process to
    see that one is stalled reports it; the others end quietly. Another thread ends the process if
    the store does not answer for the timeout, as where a cable is cut.

    Args:
        world: Which process this is.
        store: Where the processes meet; None for a single process. It is cloned, so that requests
            of the main thread and of this one do not wait for each other.
        timeout_seconds: How long a process may make no progress.
        fail: Called in a thread with the message, to report it and end the process; with None
            where another process reports it.
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
        self._store = store
        self._timeout = timeout_seconds
        self._interval = min(_MAX_INTERVAL_SECONDS, timeout_seconds / _INTERVALS_PER_TIMEOUT)
        self._fail = fail
        # Seconds for which this process ran: as clocks differ, each uses its own alone.
        self._clock = self._heartbeat_at = self._contact_at = 0.0
        self._num_exchanges = 0
        self._own = RankStatus(rank=world.rank, host=socket.gethostname(), pid=os.getpid())
        self._statuses = {rank: RankStatus(rank=rank) for rank in range(world.size)}
        self._leaving = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()  # set only if `fail` returns, as in a test
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Watchdog":
        self._main = threading.get_ident()
        if self._store is not None:
            self._store = self._store.clone()  # type: ignore[attr-defined]  # not in its stub
        for target in (self._watch, self._watch_store):
            self._threads.append(threading.Thread(target=target, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        missing = None
        if isinstance(error, LostPeersError):
            # If the others are being ended, the reason is reported in a moment. An exchange may
            # take longer than an interval, on a busy machine or without contact.
            before = self._num_exchanges
            for _ in range(_MAX_INTERVALS_TO_HEAR):
                if self._ending.wait(self._interval):
                    break
                if self._num_exchanges >= before + _INTERVALS_TO_HEAR:
                    break
            missing = self._missing(has_contact=self._num_exchanges > before)
        if self._ending.is_set():
            self._ended.wait()
        self._leaving.set()
        for thread in self._threads:
            thread.join(_INTERVALS_TO_HEAR * self._interval)
        if missing:
            raise LostPeersError(missing) from error

    def heartbeat(self, phase: str, *, waits: bool = False) -> None:
        """Note that the main thread makes progress; cheap enough for many times a step.

        Args:
            phase: What it does now, such as "step 37: part 2 of 3".
            waits: Whether that waits for other processes, as collectives do.
        """
        self._heartbeat_at = self._clock
        self._own = replace(self._own, phase=phase, waits=waits)

    def _watch_store(self) -> None:
        """Run the clock; end the process if the store stops answering: a request has no limit."""
        now = time.monotonic()
        while not self._leaving.wait(self._interval) and not self._ending.is_set():
            before, now = now, time.monotonic()
            # Time for which this process was itself stopped does not count.
            self._clock += min(now - before, 2 * self._interval)
            if self._clock - self._contact_at >= self._timeout:
                # Without the store they cannot agree which one reports: one on each machine does.
                reports = self._world.local_rank == 0 or self._world.rank == 1
                self._end(self._no_contact() if reports else None)

    def _watch(self) -> None:
        """Post, read and judge, turn after turn."""
        while not self._leaving.wait(self._interval) and not self._ending.is_set():
            is_reported = False
            with contextlib.suppress(RuntimeError):  # no contact: `_watch_store` takes care of it
                is_reported = self._exchange()
            stalled = stalled_ranks(
                self._statuses.values(), now=self._contact_at, timeout_seconds=self._timeout
            )
            if is_reported:
                self._end(None)
            elif stalled:
                described = self._describe(stalled, now=self._contact_at)
                message = f"{described}; if it is only slow, raise --stall-minutes"
                is_first = True
                with contextlib.suppress(RuntimeError):  # no contact: no other process hears of it
                    is_first = self._store is None or self._store.add(_REPORTED, 1) == 1
                self._end(message if is_first else None)
        if not self._ending.is_set():
            with contextlib.suppress(RuntimeError):  # the others may be gone already
                self._post(left=True)

    def _exchange(self) -> bool:
        """Post, and read what the others post; return whether one of them ends the run."""
        self._post()
        if self._store is None:
            self._contact_at = self._clock
            return False
        others = [rank for rank in self._statuses if rank != self._world.rank]
        # A request for a post that is not there would wait for it.
        there = [n for n in others if self._statuses[n].post or self._store.check([_key(n)])]
        posts = self._store.multi_get([_key(rank) for rank in there]) if there else []
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
            stack=stack_of(frame),
            left=left,
            seen_at=self._clock,
        )
        if self._store is not None:
            self._store.set(_key(rank), json.dumps(asdict(status)))

    def _describe(self, statuses: Iterable[RankStatus], *, now: float) -> str:
        described = [status.describe(now=now, here=self._own.host) for status in statuses]
        return "; ".join([*described, RESUME])

    def _missing(self, *, has_contact: bool) -> str | None:
        """Describe which processes no longer post when collectives break; None if all do."""
        if not has_contact:
            return self._no_contact()
        seconds = _INTERVALS_TO_MISS * self._interval
        missing = silent_ranks(
            self._statuses.values(), now=self._contact_at, timeout_seconds=seconds
        )
        return self._describe(missing, now=self._contact_at) if missing else None

    def _no_contact(self) -> str:
        """Describe that the store does not answer, which is at rank 0 or at its launcher."""
        first = self._describe([self._statuses[0]], now=self._clock)
        return (
            f"rank {self._world.rank} (host {self._own.host}, process {self._own.pid}) has had no "
            f"answer from the store for {self._clock - self._contact_at:.0f} s: a process, a "
            f"machine or the network is down; {first}"
        )

    def _end(self, message: str | None) -> None:
        """End this process, with a message unless another one reports."""
        self._ending.set()
        for status in self._statuses.values():
            # Stopped processes of this machine have to hear that they must end.
            if message and status.host == self._own.host and process_state(status.pid) == _STOPPED:
                with contextlib.suppress(OSError):
                    os.kill(status.pid, signal.SIGCONT)
        if self._store is not None:
            turns = _INTERVALS_TO_LEAVE if message is None else _INTERVALS_TO_HEAR
            time.sleep(turns * self._interval)
        self._fail(message)
        self._ended.set()


def _key(rank: int) -> str:
    return f"watchdog/{rank}"


def stack_of(frame: FrameType | None) -> str:
    """Return where a thread is: its innermost call, and the calls of this package before it."""
    calls: list[str] = []
    while frame is not None and len(calls) < _MAX_CALLS:
        path = Path(frame.f_code.co_filename)
        is_ours = _PACKAGE_DIR in path.parents
        if is_ours or not calls:
            shown = path.relative_to(_PACKAGE_DIR.parent) if is_ours else "/".join(path.parts[-2:])
            calls.append(f"{shown}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " ← ".join(calls) or "its end"


def process_state(pid: int) -> str | None:
    """Return why a process of this machine does not run, in words; None if it does, or unknown."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        # The name in brackets may hold anything, brackets too.
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "is gone"
    return _STATES.get(status.rpartition(")")[2].split()[0])
