"""Engines in several processes, each on its own GPU or with its share of the CPU cores.

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
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import TypeVar

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import TfmError
from tfm.folders.model_folder import ModelFolder
from tfm.reporting import say
from tfm.search.active import Hypothesis
from tfm.translation.batches import BatchLimits, SentenceBatch
from tfm.translation.engine import Engine

_EXIT_SECONDS = 10.0
# With fewer lines, starting processes takes longer than they save.
MIN_LINES_TO_FORK = 100

ResultT = TypeVar("ResultT")
NBestLists = list[list[Hypothesis]]
# What a function returns in a worker process, and the messages for the user since the last one.
WithMessages = tuple[ResultT, list[str]]


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
            with _blocked_sigint(), warnings.catch_warnings():
                # Python 3.12 warns of every fork beside threads. Those of torch are not used here.
                warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
                for index in range(self._num_workers):
                    self._workers.append(
                        _Worker(index, self._num_workers, self._models, self._inference)
                    )
            limits, *_ = [self._unwrap(worker.limits()) for worker in self._workers]
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
            worker.pool.shutdown(cancel_futures=True)

    def run(self, batch: SentenceBatch, config: SearchConfig) -> NBestLists:
        """Compute a batch as `Engine.run` does, in a process that is idle."""
        lines = batch.line_numbers
        work = f"it computed {len(lines):,} of the lines {min(lines):,} to {max(lines):,}"
        worker = self._idle.get()
        try:
            with worker.named(work):
                return self._unwrap(worker.pool.submit(_run, batch, config).result())
        finally:
            self._idle.put(worker)

    def _unwrap(self, result: WithMessages[ResultT]) -> ResultT:
        """Return the output, and print the messages that no other process has sent before."""
        output, messages = result
        for message in messages:
            if message not in self._printed:
                self._printed.add(message)
                say(message)
        return output


def can_fork(engine: Engine) -> bool:
    """Return whether forked processes can share an engine: GPUs and macOS's libraries forbid it."""
    return engine.compute.device.type == "cpu" and sys.platform == "linux"


class _Worker:
    """A process with an engine, on GPU `index` or on the CPU."""

    def __init__(
        self,
        index: int,
        num_workers: int,
        models: Sequence[ModelFolder] | Engine,
        inference: InferenceConfig,
    ) -> None:
        others = multiprocessing.active_children()
        engine = models if isinstance(models, Engine) else None
        # A pool of one process: so its batch and its exit code are known when it ends.
        self.pool = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn" if engine is None else "fork"),
            initializer=_initialize,
            initargs=(engine,),  # a forked process inherits it
        )
        if isinstance(models, Engine):
            self._limits = self.pool.submit(_limits)
        else:
            self._limits = self.pool.submit(_load, models, inference, index, num_workers)
        [self.process] = set(multiprocessing.active_children()).difference(others)
        self._name = f"process {index + 1} of {num_workers} (pid {self.process.pid})"

    def limits(self) -> WithMessages[BatchLimits]:
        """Wait until the engine is loaded, and return its limits or raise its error."""
        with self.named("it loaded the model"):
            return self._limits.result()

    @contextlib.contextmanager
    def named(self, work: str) -> Iterator[None]:
        """Name this process and its work in the error if it ends in this block."""
        try:
            yield
        except BrokenProcessPool:
            # The pool waits for the process too, and may be the first to learn its exit code.
            end = time.monotonic() + _EXIT_SECONDS
            while self.process.exitcode is None and time.monotonic() < end:
                time.sleep(0.01)
            ending = _describe_exit(self.process.exitcode)
            raise LostProcessError(f"{self._name} {ending} while {work}") from None


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Start processes that inherit a blocked SIGINT: Ctrl-C reaches all, but one handles it."""
    # The resource tracker would unblock it when it starts, so it is started first. It frees the
    # locks of the pools if this process is killed, which needs no warning.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"


# --- in the worker process

_engine: Engine
_messages: list[str] = []


def _initialize(engine: Engine | None) -> None:
    """Start a process with the engine of the process that it was forked from, if it was."""
    global _engine
    _end_with_parent()
    if engine is not None:
        _engine = engine
        _engine.enter_worker(_messages.append)


def _end_with_parent() -> None:
    """End this process as soon as its parent process has ended."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _load(
    folders: Sequence[ModelFolder], inference: InferenceConfig, index: int, num_workers: int
) -> WithMessages[BatchLimits]:
    global _engine
    _engine = Engine.start(
        folders,
        inference,
        index=index,
        num_processes=num_workers,
        notify=_messages.append,
    )
    return _limits()


def _limits() -> WithMessages[BatchLimits]:
    return _with_messages(_engine.limits)


def _run(batch: SentenceBatch, config: SearchConfig) -> WithMessages[NBestLists]:
    return _with_messages(_engine.run(batch, config))


def _with_messages(result: ResultT) -> WithMessages[ResultT]:
    messages, _messages[:] = list(_messages), []
    return result, messages
