"""Engines in several processes, on their own or shared GPUs, or with a share of the CPU cores.

On CPUs, processes are forked from one that has loaded the models: they start at once and share the
weights. With one thread each they need no barriers, and Python's own work is divided, too.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import TfmError
from tfm.folders.model_folder import ModelFolder
from tfm.machine.search_path import same_search_path
from tfm.reporting import say
from tfm.translation.batches import BatchLimits, SentenceBatch
from tfm.translation.chain import NBestLists
from tfm.translation.engine import Engine

_EXIT_SECONDS = 10.0


class LostProcessError(TfmError):
    """A worker process ended before its work was done."""


class Workers:
    """Several engines, which compute a batch each at the same time; a context manager.

    Args:
        models: Model folders, which each process loads; or an engine on the CPU, which processes
            of one thread each, forked from this one, share (see `can_fork`).
        inference: Device and arithmetic.
        num_workers: Number of processes to start.
    """

    def __init__(
        self,
        models: Sequence[ModelFolder] | Engine,
        *,
        inference: InferenceConfig,
        num_workers: int,
    ) -> None:
        self._models, self._inference = models, inference
        self._num_workers = num_workers
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._printed: set[str] = set()

    def __enter__(self) -> "Workers":
        try:
            with same_search_path(), _blocked_sigint(), warnings.catch_warnings():
                # Python 3.12 warns of every fork beside threads. torch's threads are not used here.
                warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
                for index in range(self._num_workers):
                    self._workers.append(
                        _Worker(index, self._num_workers, self._models, self._inference)
                    )
            limits: BatchLimits
            limits, *_ = [self._ask(worker, "it loaded the model") for worker in self._workers]
        except BaseException:
            self._end()
            raise
        self.limits = replace(
            limits,
            num_workers=self._num_workers,
            chunk_lines=self._num_workers * limits.chunk_lines,
        )
        for worker in self._workers:
            self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # workers hold nothing that needs a clean shutdown
        for worker in self._workers:
            worker.process.join()

    def run(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        """Compute a batch as `Engine.run` does, in a process that is idle."""
        lines = batch.line_numbers
        work = f"it computed {len(lines):,} of the lines {min(lines):,} to {max(lines):,}"
        worker = self._idle.get()
        try:
            hypotheses: NBestLists = self._ask(worker, work, batch, config)
            return hypotheses
        finally:
            self._idle.put(worker)

    def _ask(self, worker: "_Worker", work: str, *request: Any) -> Any:
        """Return or raise the answer, and print the messages that no other process has sent."""
        answer, messages = worker.ask(work, *request)
        for message in messages:
            if message not in self._printed:
                self._printed.add(message)
                say(message)
        if isinstance(answer, Exception):
            raise answer
        return answer


def can_fork(engine: Engine) -> bool:
    """Return whether forked processes can share an engine: GPUs and macOS's libraries forbid it."""
    return engine.compute.device.type == "cpu" and sys.platform == "linux"


class _Worker:
    """A process with an engine, on a GPU or on the CPU."""

    def __init__(
        self,
        index: int,
        num_workers: int,
        models: Sequence[ModelFolder] | Engine,
        inference: InferenceConfig,
    ) -> None:
        context: Any = multiprocessing.get_context(
            "fork" if isinstance(models, Engine) else "spawn"
        )
        self._connection, connection = context.Pipe()
        self.process = context.Process(
            target=_work, args=(connection, models, inference, index, num_workers), daemon=True
        )
        self.process.start()
        connection.close()  # if the process ends, no other one holds its end of the pipe
        self._name = f"process {index + 1} of {num_workers} (pid {self.process.pid})"

    def ask(self, work: str, *request: Any) -> tuple[Any, list[str]]:
        """Send a request, if any; return the next answer or error, and the messages before it.

        If the process ends, LostProcessError names it and its work.
        """
        try:
            if request:
                self._connection.send(request)
            answer, messages = self._connection.recv()
        except (EOFError, OSError):
            self.process.join(_EXIT_SECONDS)
            ending = _describe_exit(self.process.exitcode)
            raise LostProcessError(f"{self._name} {ending} while {work}") from None
        return answer, messages


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Start processes that inherit a blocked SIGINT: Ctrl-C reaches all, but one handles it.

    A process whose start is interrupted would print a traceback. Other threads may receive the
    signal, and Python then interrupts the main thread, so it is also held back there.
    """
    # The resource tracker would unblock it when it starts, so it is started first.
    resource_tracker.ensure_running()
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler, received = signal.getsignal(signal.SIGINT), threading.Event()
    holds_back = callable(handler) and threading.current_thread() is threading.main_thread()
    if holds_back:
        signal.signal(signal.SIGINT, lambda *_: received.set())
    try:
        yield
    finally:
        if holds_back:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        if received.is_set():
            signal.raise_signal(signal.SIGINT)


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"


def _work(
    connection: Connection,
    models: Sequence[ModelFolder] | Engine,
    inference: InferenceConfig,
    index: int,
    num_workers: int,
) -> None:
    """Send the limits of an engine, and then the results of each batch, from a worker process."""
    _end_with_parent()
    messages: list[str] = []
    try:
        if isinstance(models, Engine):
            engine = models
            engine.enter_worker(messages.append)
        else:
            engine = Engine.start(
                models, inference, index=index, num_processes=num_workers, notify=messages.append
            )
        answer: Any = engine.limits
    except Exception as error:
        connection.send((_with_traceback(error), messages))
        return
    with contextlib.suppress(EOFError, ConnectionError):  # the parent process has ended
        while True:
            connection.send((answer, messages))
            messages.clear()
            batch, config = connection.recv()
            try:
                answer = engine.run(batch, config)
            except Exception as error:
                answer = _with_traceback(error)


def _with_traceback(error: Exception) -> Exception:
    """Add the traceback as a note, because another process will raise the error."""
    error.add_note("".join(traceback.format_exception(error)))
    return error


def _end_with_parent() -> None:
    """End this process as soon as its parent process has ended."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
