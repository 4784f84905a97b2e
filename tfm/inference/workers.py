"""Engines in several processes, each on its own GPU or with its share of the CPU cores."""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import TfmError
from tfm.inference.batches import BatchLimits, Chunk, Output, SentenceBatch, by_line
from tfm.inference.engine import Encode, Task, load_engine
from tfm.reporting import say

# Chunks that are read ahead, per worker.
_CHUNKS_AHEAD = 2
_JOIN_SECONDS = 10.0


class LostProcessError(TfmError):
    """A worker process ended before its work was done."""


class Workers:
    """Computes several batches at a time, each by an `Engine` of its own; a context manager.

    Args:
        folders: Model folders; several form an ensemble.
        inference: Device and arithmetic.
        num_workers: Number of processes to start.
    """

    def __init__(
        self, folders: Sequence[Path], *, inference: InferenceConfig, num_workers: int
    ) -> None:
        self._load = folders, inference
        self._num_workers = num_workers
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(num_workers)  # each thread waits for one worker
        self._printed: set[str] = set()

    def __enter__(self) -> "Workers":
        with _blocked_sigint():
            for index in range(self._num_workers):
                worker = _Worker(index, self._num_workers, *self._load, printed=self._printed)
                self._workers.append(worker)
                self._idle.put(worker)
        try:
            limits, *_ = [worker.limits() for worker in self._workers]
        except BaseException:
            self._end()
            raise
        self.limits = replace(limits, num_workers=self._num_workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # workers hold nothing that needs a clean shutdown
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    def map(
        self, task: Task[Output], chunks: Iterable[Chunk], encode: Encode, config: SearchConfig
    ) -> Iterator[tuple[Chunk, dict[int, Output]]]:
        """Translate or score chunks as `Engine.map` does; a thread reads ahead meanwhile.

        An error in reading is raised after the outputs of the chunks before it.

        Raises:
            LostProcessError: A worker process has ended.
        """
        underway: queue.Queue[
            tuple[Chunk, list[SentenceBatch], list[Future[list[Output]]]] | BaseException | None
        ]
        underway = queue.Queue(maxsize=_CHUNKS_AHEAD * len(self._workers))

        def read() -> None:
            try:
                for chunk in chunks:
                    batches = encode(chunk)
                    outputs = [
                        self._threads.submit(self._run, task, batch, config) for batch in batches
                    ]
                    underway.put((chunk, batches, outputs))
                underway.put(None)
            except BaseException as error:  # raised again in the consumer's thread
                underway.put(error)

        threading.Thread(target=read, daemon=True).start()
        while (item := underway.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            chunk, batches, outputs = item
            yield chunk, by_line(batches, (output.result() for output in outputs))

    def _run(self, task: Task[Output], batch: SentenceBatch, config: SearchConfig) -> list[Output]:
        worker = self._idle.get()
        try:
            return worker.run(task, batch, config)
        finally:
            self._idle.put(worker)


class _Worker:
    """A process with an engine on GPU `index`, and the connection to it.

    `printed` holds the messages of all workers, so that each is printed once.
    """

    def __init__(
        self,
        index: int,
        num_workers: int,
        folders: Sequence[Path],
        inference: InferenceConfig,
        *,
        printed: set[str],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(child_end, folders, inference, index, num_workers), daemon=True
        )
        self.process.start()
        child_end.close()  # so that reading fails when the process has ended
        self._name = f"process {index + 1} of {num_workers}"
        self._printed = printed

    def limits(self) -> BatchLimits:
        """Wait until the engine is loaded, and return its limits or raise its error."""
        limits: BatchLimits = self._answer("it loaded the model")
        return limits

    def run(self, task: Task[Output], batch: SentenceBatch, config: SearchConfig) -> list[Output]:
        """Run a task in the process, and return its outputs or raise its error."""
        lines = batch.line_numbers
        work = f"it computed {len(lines):,} of the lines {min(lines):,} to {max(lines):,}"
        outputs: list[Output] = self._answer(work, (task, batch, config))
        return outputs

    def _answer(self, work: str, request: Any = None) -> Any:
        try:
            if request is not None:
                self.connection.send(request)
            while True:
                kind, value = self.connection.recv()
                match kind:
                    case "done":
                        return value
                    case "failed":
                        raise value
                    case "message" if value not in self._printed:
                        self._printed.add(value)
                        say(value)
        except (EOFError, ConnectionError):
            self.process.join(_JOIN_SECONDS)
            ending = _describe_exit(self.process.exitcode)
            raise LostProcessError(
                f"{self._name} (pid {self.process.pid}) {ending} while {work}"
            ) from None


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Start processes that inherit that SIGINT is blocked: Ctrl-C reaches all, but one handles it.

    Windows has no signal masks.
    """
    if sys.platform == "win32":
        yield
        return
    # The resource tracker would unblock it when it starts, so it is started first.
    resource_tracker.ensure_running()
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if sys.platform != "win32" and exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"


def _serve(
    connection: Connection,
    folders: Sequence[Path],
    inference: InferenceConfig,
    index: int,
    num_workers: int,
) -> None:
    """Load an engine and run tasks until the connection closes: the worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def notify(text: str) -> None:
        connection.send(("message", text))

    with contextlib.suppress(EOFError, ConnectionError):
        try:
            engine = load_engine(
                folders, inference, index=index, num_processes=num_workers, notify=notify
            )
        except (TfmError, OSError) as error:
            connection.send(("failed", error))
            return
        connection.send(("done", engine.limits))
        while True:
            task, batch, config = connection.recv()
            answer: tuple[str, Any]
            try:
                answer = "done", task(engine, batch, config)
            except TfmError as error:
                answer = "failed", error
            connection.send(answer)


def _end_with_parent() -> None:
    """End this process as soon as its parent process has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
