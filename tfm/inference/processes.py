"""Models in several processes: each on a GPU of its own, or with its share of the cores."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import TfmError
from tfm.inference.models import Models, Output, Take, Task, load_engine
from tfm.inference.sentences import SentenceBatch
from tfm.reporting import say

# Batches, for each process, that may be finished before one that comes earlier in the text.
_BATCHES_AHEAD = 4
_SECONDS_TO_END = 10.0


class LostProcessError(TfmError):
    """A process that ended before its work was done."""


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What a process is to load, and where.

    Attributes:
        folders: Model folders.
        inference: Where to compute, and how.
        index: Its number among the processes, from 0, and that of its GPU.
        num_processes: How many there are.
    """

    folders: Sequence[Path]
    inference: InferenceConfig
    index: int
    num_processes: int


@dataclass(kw_only=True)
class _Job:
    """A batch that a process has or had, and what came of it."""

    batch: SentenceBatch
    outputs: list[Any] | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.outputs is not None or self.error is not None


@dataclass(kw_only=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    is_ready: bool = False
    job: _Job | None = None


class ModelProcesses:
    """Does what `Models` does, to several batches at once; a context manager.

    Args:
        folders: Model folders; several make an ensemble.
        inference: Where to compute, and how.
        num_processes: How many processes to start.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        inference: InferenceConfig,
        num_processes: int,
    ) -> None:
        self._shares = [
            _Share(
                folders=folders,
                inference=inference,
                index=index,
                num_processes=num_processes,
            )
            for index in range(num_processes)
        ]
        self._workers: list[_Worker] = []
        self._max_positions: int | None = None
        self._told: set[str] = set()
        self._awaited: set[int] = set()

    def __enter__(self) -> "ModelProcesses":
        # Processes inherit what is blocked: Ctrl-C, which goes to all of them, is this one's alone.
        # The tracker, started on first use, unblocks it.
        resource_tracker.ensure_running()
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for share in self._shares:
                self._workers.append(_started(share))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.kill()  # they own nothing that has to be put in order
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    @property
    def max_positions(self) -> int | None:
        """The most tokens that the models take in on a side; None if there is no limit.

        It is known when a process has loaded them.
        """
        while not any(worker.is_ready for worker in self._workers):
            self._receive()
        return self._max_positions

    def map(
        self, task: Task[Output], take: Take, config: SearchConfig
    ) -> Iterator[tuple[SentenceBatch, list[Output]]]:
        """Do a task to batches, which are taken as processes become idle.

        Yields:
            Each batch, in order, and its outputs. What goes wrong is raised in its turn, too.

        Raises:
            LostProcessError: A process has ended; this is raised at once.
        """
        underway: deque[_Job] = deque()
        while True:
            if underway and underway[0].is_done:
                yield _result(underway.popleft())
            elif (idle := self._idle(len(underway))) is None:
                self._receive()
            elif (batch := take(not underway)) is not None:
                underway.append(_Job(batch=batch))
                self._give(idle, underway[-1], task, config)
            elif underway:
                self._receive()
            else:
                return

    def is_ready(self, descriptor: int, wait: bool) -> bool:
        """Whether there is something to read from a file, or its end.

        Args:
            descriptor: The file's.
            wait: Whether to wait for it. If not, `map` takes a batch again once it is there.

        Raises:
            LostProcessError: A process ended meanwhile.
        """
        while not connection.wait([descriptor], timeout=0):
            self._awaited.add(descriptor)
            if not wait:
                return False
            self._receive()
        return True

    def _idle(self, num_underway: int) -> _Worker | None:
        """A process to give the next batch to, if it is time to."""
        if num_underway >= _BATCHES_AHEAD * len(self._workers):
            return None
        return next((each for each in self._workers if each.is_ready and each.job is None), None)

    def _give(self, worker: _Worker, job: _Job, task: Task[Any], config: SearchConfig) -> None:
        worker.job = job
        try:
            worker.connection.send((task, job.batch, config))
        except ConnectionError:
            raise self._lost(worker) from None

    def _receive(self) -> None:
        """Wait until there is news of processes, which is noted, or something that is awaited."""
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = connection.wait([*by_connection, *self._awaited])
        self._awaited.clear()
        for each, worker in by_connection.items():
            if each in ready:
                self._note(worker)

    def _note(self, worker: _Worker) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            raise self._lost(worker) from None
        match kind:
            case "ready":
                worker.is_ready = True
                self._max_positions = value
            case "told":
                if value not in self._told:  # by another process
                    self._told.add(value)
                    say(value)
            case "failed" if worker.job is None:
                raise value
            case _:
                assert worker.job is not None  # noqa: S101 - what else could it answer?
                worker.job.outputs = value if kind == "done" else None
                worker.job.error = value if kind == "failed" else None
                worker.job = None

    def _lost(self, worker: _Worker) -> LostProcessError:
        """What to say of a process whose connection is closed."""
        worker.process.join(_SECONDS_TO_END)
        number = self._workers.index(worker) + 1
        if worker.job is not None:
            lines = worker.job.batch.line_numbers
            doing = f"while it had {len(lines):,} of the lines {min(lines):,} to {max(lines):,}"
        else:
            doing = "between two batches" if worker.is_ready else "while it loaded the model"
        return LostProcessError(
            f"process {number} of {len(self._workers)} (pid {worker.process.pid}) "
            f"{_end(worker.process.exitcode)} {doing}"
        )


def _end(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"


def _result(job: _Job) -> tuple[SentenceBatch, list[Any]]:
    if job.error is not None:
        raise job.error
    return job.batch, job.outputs or []


def _started(share: _Share) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, share), daemon=True)
    process.start()
    theirs.close()  # so that ours ends with the process
    return _Worker(process=process, connection=ours)


def _serve(connection: Connection, share: _Share) -> None:
    """What a process does: load models, then answer batches until nobody asks."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            models = _loaded(share, connection)
        except (TfmError, OSError) as error:
            connection.send(("failed", error))
            return
        connection.send(("ready", models.max_positions))
        while True:
            task, batch, config = connection.recv()
            try:
                outputs = models.run(task, batch, config)
            except TfmError as error:
                connection.send(("failed", error))
            else:
                connection.send(("done", outputs))


def _loaded(share: _Share, connection: Connection) -> Models:
    return load_engine(
        share.folders,
        share.inference,
        index=share.index,
        num_processes=share.num_processes,
        tell=lambda text: connection.send(("told", text)),
    )


def _end_with_parent() -> None:
    """End at once when whoever started this process is gone, however that came about."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
