"""A watch over the processes of a run: one that does not come on ends them all, by name.

Nothing else would: a collective waits for a process that is stuck in its data, stopped, or on a
machine that is gone, and says neither for whom nor why.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType

from torch.distributed.distributed_c10d import Store

from tfm.distributed.failures import GO_ON, end_process
from tfm.distributed.standing import (
    STOPPED,
    Standing,
    Watched,
    not_coming_on,
    process_state,
    stack_of,
)
from tfm.errors import LostPeersError
from tfm.world import World

_LONGEST_INTERVAL_SECONDS = 1.0
_INTERVALS_A_TIMEOUT = 10
# How long whoever speaks leaves the others to hear that it does, and they leave it to speak first.
_INTERVALS_TO_HEAR = 4
_INTERVALS_TO_LEAVE = 8
# Once collectives break, who has not posted for so long is likely the one that is gone.
_INTERVALS_TO_MISS = 2
_CLAIMS = "watchdog/claims"

Fail = Callable[[str | None], None]


class Watchdog:
    """Ends the run if one of its processes does not come on for a time; a context manager.

    Open it around the work, in the main thread of each process, and call `beat` as the work comes
    on. Whatever lies between two beats has to fit in the timeout: compiling, the first use of a
    GPU, saving; long loops, such as validation, beat in each round.

    A thread posts where this process stands, and reads what the others post. A process is to blame
    if its posts no longer change (it is stopped, cut off or gone, or its main thread holds the
    interpreter's lock), or if it stays in one phase that is its own work. The first to see it
    speaks, whichever that is; the others end quietly. As clocks differ between machines, only the
    observer's own counts, and not the time for which it was itself stopped.

    Args:
        world: Which process this is.
        store: Where the processes meet; None for a process alone. It is cloned: requests of the
            main thread and of this one do not wait for each other.
        timeout_seconds: How long a process may stay where it is.
        fail: Called with the message in a thread of the watchdog, to report it and end the
            process; with None where another process reports.
    """

    def __init__(
        self,
        world: World,
        store: Store | None,
        *,
        timeout_seconds: float,
        fail: Fail = end_process,
    ) -> None:
        self._world = world
        self._store = store
        self._timeout = timeout_seconds
        self._interval = min(_LONGEST_INTERVAL_SECONDS, timeout_seconds / _INTERVALS_A_TIMEOUT)
        self._fail = fail
        self._beat = (0, "its start", False)
        self._turn = 0
        self._is_connected = False
        self._host = socket.gethostname()
        self._leaving = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()  # set only if `fail` returns, as it may in a test
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Watchdog":
        now = time.monotonic()
        self._main = threading.get_ident()
        self._watched = {
            rank: Watched(Standing(rank=rank), now, now) for rank in range(self._world.size)
        }
        self._turn_at = self._contact_at = now
        if self._world.size == 1:
            self._store = None
        targets = [self._watch]
        if self._store is not None:
            self._store = self._store.clone()  # type: ignore[attr-defined]  # not in its stub
            self._is_connected = True
            targets.append(self._watch_contact)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        missing = None
        if isinstance(error, LostPeersError):
            # Perhaps the others are being ended, and why is told in a moment: that is the news.
            self._ending.wait(_INTERVALS_TO_HEAR * self._interval)
            missing = self._missing()
        if self._ending.is_set():
            self._ended.wait()
        self._leaving.set()
        for thread in self._threads:
            thread.join(_INTERVALS_TO_HEAR * self._interval)
        if missing:
            raise LostPeersError(missing) from error

    def beat(self, phase: str, *, waits: bool = False) -> None:
        """Note that the main thread has come on; cheap enough for many times a step.

        Args:
            phase: What it is at now, such as "step 37: part 2 of 3".
            waits: Whether the phase waits for other processes, as collectives do.
        """
        self._beat = (self._beat[0] + 1, phase, waits)

    def _watch(self) -> None:
        """Post, read and judge, turn after turn."""
        while not self._leaving.wait(self._interval):
            self._forgive_own_absence()
            now = time.monotonic()
            self._watched[self._world.rank].see(self._standing(), now)
            if self._exchange():
                self._end(None)
                return
            if message := self._verdict():
                self._claim_and_end(message)
                return
        if self._is_connected:
            with contextlib.suppress(RuntimeError):  # the others may be gone already
                self._post(self._standing(left=True))

    def _watch_contact(self) -> None:
        """End the process if the store no longer answers: a request to it may wait for ever."""
        turn_at = time.monotonic()
        while not self._leaving.wait(self._interval) and not self._ending.is_set():
            now, before = time.monotonic(), turn_at
            turn_at = now
            if now - before >= self._timeout / 2:
                self._contact_at = now
            elif now - self._contact_at >= self._timeout:
                # Without a store they cannot agree who speaks: one on each machine does.
                speaks = self._world.local_rank == 0 or self._world.rank == 1
                self._end(self._lost_contact() if speaks else None)
                return

    def _forgive_own_absence(self) -> None:
        """Count from now if this process was itself stopped: it knows nothing of that time."""
        now = time.monotonic()
        if now - self._turn_at >= self._timeout / 2:
            for process in self._watched.values():
                process.posted_at = process.beaten_at = now
        self._turn_at = now

    def _exchange(self) -> bool:
        """Post and read; whether another process already ends the run."""
        if self._store is None or not self._is_connected:
            return False
        try:
            self._post(self._watched[self._world.rank].standing)
            self._read(self._store)
            return self._store.check([_CLAIMS])
        except RuntimeError:
            # It never connects again. Perhaps all are about to leave: time tells.
            self._is_connected = False
            return False

    def _read(self, store: Store) -> None:
        keys = {rank: _key(rank) for rank in self._watched if rank != self._world.rank}
        # To ask for what is not there would wait for it.
        there = [rank for rank in keys if self._known(rank) or store.check([keys[rank]])]
        posts = store.multi_get([keys[rank] for rank in there]) if there else []
        self._contact_at = time.monotonic()
        for rank, post in zip(there, posts, strict=True):
            self._watched[rank].see(Standing(**json.loads(post)), self._contact_at)

    def _known(self, rank: int) -> bool:
        return self._watched[rank].standing.turn > 0

    def _post(self, standing: Standing) -> None:
        if self._store is not None:
            self._store.set(_key(standing.rank), json.dumps(asdict(standing)))

    def _standing(self, *, left: bool = False) -> Standing:
        beats, phase, waits = self._beat
        self._turn += 1
        return Standing(
            rank=self._world.rank,
            host=self._host,
            pid=os.getpid(),
            turn=self._turn,
            beats=beats,
            phase=phase,
            waits=waits,
            stack=stack_of(sys._current_frames().get(self._main)),  # noqa: SLF001 - no public name
            left=left,
        )

    def _verdict(self) -> str | None:
        """Who does not come on, in words; None if all do."""
        others_at = time.monotonic() if self._store is None else self._contact_at
        to_blame = not_coming_on(
            list(self._watched.values()), now=others_at, timeout_seconds=self._timeout
        )
        if not to_blame:
            return None
        named = self._named(to_blame, now=others_at, timeout_seconds=self._timeout)
        return f"{named}; if it is only slow, raise --stall-minutes"

    def _missing(self) -> str | None:
        """Who no longer posts when collectives break, in words; None if all still do."""
        if self._store is None or not self._is_connected:
            return self._lost_contact()
        seconds = _INTERVALS_TO_MISS * self._interval
        present = [process for process in self._watched.values() if not process.standing.left]
        missing = [p for p in present if self._contact_at - p.posted_at >= seconds]
        return (
            self._named(missing, now=self._contact_at, timeout_seconds=seconds) if missing else None
        )

    def _named(self, processes: list[Watched], *, now: float, timeout_seconds: float) -> str:
        """A message about processes that do not post, or do not come on, for so long."""
        described = [
            process.in_words(now=now, timeout_seconds=timeout_seconds, here=self._host)
            for process in processes
        ]
        return "; ".join([*described, GO_ON])

    def _lost_contact(self) -> str:
        """Whom it may be about that the store does not answer."""
        now = time.monotonic()
        others = [p for rank, p in self._watched.items() if rank != self._world.rank]
        down = [
            process
            for process in others
            if process.standing.host == self._host and process_state(process.standing.pid)
        ]
        first = [process for process in others if process.standing.rank == 0]
        suspects = self._named(down or first, now=now, timeout_seconds=self._timeout)
        return (
            f"rank {self._world.rank} (host {self._host}, process {os.getpid()}) has had no answer "
            f"from where the processes meet for {now - self._contact_at:.0f} s: a process, a "
            f"machine or the network is down; {suspects}"
        )

    def _claim_and_end(self, message: str) -> None:
        """End the run with a message, or quietly if another process was faster."""
        is_mine = True
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # then nobody else hears of it, either
                is_mine = self._store.add(_CLAIMS, 1) == 1
        self._end(message if is_mine else None)

    def _wake_stopped(self) -> None:
        """Let processes of this machine that are stopped hear that they have to end."""
        for process in self._watched.values():
            standing = process.standing
            if standing.host == self._host and process_state(standing.pid) == STOPPED:
                with contextlib.suppress(OSError):
                    os.kill(standing.pid, signal.SIGCONT)

    def _end(self, message: str | None) -> None:
        self._ending.set()
        if message is not None:
            self._wake_stopped()
        if self._store is not None:
            time.sleep(
                self._interval * (_INTERVALS_TO_LEAVE if message is None else _INTERVALS_TO_HEAR)
            )
        self._fail(message)
        self._ended.set()


def _key(rank: int) -> str:
    return f"watchdog/{rank}"
