"""An engine in each of several processes, on a GPU of its own or with its share of the cores."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tfm.config import InferenceConfig, SearchConfig, TransformerConfig
from tfm.errors import TfmError
from tfm.inference.batches import (
    BatchLimits,
    Chunk,
    Output,
    SentenceBatch,
    by_line,
    default_max_tokens,
)
from tfm.inference.engine import Encode, Task, load_engine
from tfm.reporting import say
from tfm.storage.checkpoint.model_folder import load_info

# Chunks that are read before the first of them is finished, for each worker.
_CHUNKS_AHEAD = 2
_SECONDS_TO_END = 10.0


class LostProcessError(TfmError):
    """A worker process that ended before its work was done."""


class Workers:
    """Does what an `Engine` does, to several batches at a time; a context manager.

    Args:
        folders: Model folders; several make an ensemble.
        inference: Where to compute, and how.
        num_workers: How many processes to start.

    Attributes:
        limits: What batches suit them.
    """

    def __init__(
        self, folders: Sequence[Path], *, inference: InferenceConfig, num_workers: int
    ) -> None:
        models = [load_info(folder).run.model for folder in folders]
        positions = [
            model.learned_positions
            for model in models
            if isinstance(model, TransformerConfig) and model.learned_positions is not None
        ]
        self.limits = BatchLimits(
            max_positions=min(positions, default=None),
            max_tokens=default_max_tokens(models[0].d_model),
            num_workers=num_workers,
        )
        self._load = folders, inference
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(num_workers)  # each waits for a worker
        self._told: set[str] = set()

    def __enter__(self) -> "Workers":
        # Processes inherit what is blocked: Ctrl-C, which goes to all of them, is this one's alone.
        # The tracker, started on first use, unblocks it.
        resource_tracker.ensure_running()
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for index in range(self.limits.num_workers):
                worker = _Worker(index, self.limits.num_workers, *self._load, told=self._told)
                self._workers.append(worker)
                self._idle.put(worker)
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
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    def map(
        self, task: Task[Output], chunks: Iterable[Chunk], encode: Encode, config: SearchConfig
    ) -> Iterator[tuple[Chunk, dict[int, Output]]]:
        """Do a task to chunks of lines, which are read in a thread while others are computed.

        Args:
            task: What to do to each batch.
            chunks: The lines.
            encode: Makes batches of a chunk.
            config: How to search.

        Yields:
            Each chunk, in order, and its outputs by line number. An error is raised in its turn.

        Raises:
            LostProcessError: A process has ended.
        """
        underway: queue.Queue[
            tuple[Chunk, list[SentenceBatch], list[Future[list[Output]]]] | BaseException | None
        ]
        underway = queue.Queue(maxsize=_CHUNKS_AHEAD * len(self._workers))

        def read() -> None:
            try:
                for chunk in chunks:
                    batches = encode(chunk)
                    outputs = [self._submit(task, batch, config) for batch in batches]
                    underway.put((chunk, batches, outputs))
                underway.put(None)
            except BaseException as error:  # raised again in the other thread
                underway.put(error)

        threading.Thread(target=read, daemon=True).start()
        while (first := underway.get()) is not None:
            if isinstance(first, BaseException):
                raise first
            chunk, batches, outputs = first
            yield chunk, by_line(batches, (output.result() for output in outputs))

    def _submit(
        self, task: Task[Output], batch: SentenceBatch, config: SearchConfig
    ) -> Future[list[Output]]:
        def run() -> list[Output]:
            worker = self._idle.get()
            try:
                return worker.run(task, batch, config)
            finally:
                self._idle.put(worker)

        return self._threads.submit(run)


class _Worker:
    """A process with an engine, and the connection to it.

    Args:
        index: Its number among the workers, from 0, and that of its GPU.
        num_workers: How many there are.
        folders: Model folders.
        inference: Where to compute, and how.
        told: What workers have said; each line is said once.
    """

    def __init__(
        self,
        index: int,
        num_workers: int,
        folders: Sequence[Path],
        inference: InferenceConfig,
        *,
        told: set[str],
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, folders, inference, index, num_workers), daemon=True
        )
        self.process.start()
        theirs.close()  # so that ours ends with the process
        self._name = f"process {index + 1} of {num_workers}"
        self._told = told

    def run(self, task: Task[Output], batch: SentenceBatch, config: SearchConfig) -> list[Output]:
        """Have the process do a task; returns its outputs, or raises its error."""
        try:
            self.connection.send((task, batch, config))
            while True:
                kind, value = self.connection.recv()
                match kind:
                    case "done":
                        outputs: list[Output] = value
                        return outputs
                    case "failed":
                        raise value
                    case "told" if value not in self._told:
                        self._told.add(value)
                        say(value)
        except (EOFError, ConnectionError):
            raise self._lost(batch) from None

    def _lost(self, batch: SentenceBatch) -> LostProcessError:
        """What to say when the connection is closed."""
        self.process.join(_SECONDS_TO_END)
        lines = batch.line_numbers
        return LostProcessError(
            f"{self._name} (pid {self.process.pid}) {_end(self.process.exitcode)} while it had "
            f"{len(lines):,} of the lines {min(lines):,} to {max(lines):,}"
        )


def _end(exit_code: int | None) -> str:
    """How a process ended, in words."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"


def _serve(
    connection: Connection,
    folders: Sequence[Path],
    inference: InferenceConfig,
    index: int,
    num_workers: int,
) -> None:
    """Load an engine, then do tasks until nobody asks: what a worker process runs."""
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def notify(text: str) -> None:
        connection.send(("told", text))

    with contextlib.suppress(EOFError, ConnectionError):
        try:
            engine = load_engine(
                folders, inference, index=index, num_processes=num_workers, notify=notify
            )
        except (TfmError, OSError) as error:
            connection.send(("failed", error))
            return
        while True:
            task, batch, config = connection.recv()
            answer: tuple[str, Any]
            try:
                answer = "done", task(engine, batch, config)
            except TfmError as error:
                answer = "failed", error
            connection.send(answer)


def _end_with_parent() -> None:
    """End at once when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
