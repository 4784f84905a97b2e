"""Run one command in several processes, on one node or more, with torch's elastic agent."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from tfm.device.cpu import num_cores
from tfm.distributed.failures import RESUME, Failure, root_cause
from tfm.distributed.interruption import UNSAVED, StopRequests
from tfm.distributed.layout import Layout
from tfm.distributed.rendezvous import POLL_SECONDS, Rendezvous
from tfm.errors import InterruptedRunError
from tfm.reporting import say

_JOIN_SECONDS = 600
# How long a node whose processes have ended waits for the other nodes to end.
_EXIT_BARRIER_SECONDS = 60
# How long processes that the agent ends have to react before they are killed.
_SHUTDOWN_SECONDS = 1


def launch(layout: Layout, command: Sequence[str], *, join_seconds: int = _JOIN_SECONDS) -> int:
    """Run a command in several processes, with torchrun's environment, until all have ended.

    Signals to stop are forwarded to the processes. `join_seconds` limits the wait for other nodes.

    Returns:
        The exit code: 0, or that of Ctrl-C if the processes have saved and stopped for it.

    Raises:
        UsageError: There are too few GPUs, or nodes contradict each other.
        FailedProcessError: A process has failed, or the nodes do not find each other.
        InterruptedRunError: A signal has stopped the processes before they could save.
    """
    size = layout.num_local_processes()
    # Silence elastic's logs, which would repeat each failure and signal.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    with (
        StopRequests() as stop,
        tempfile.TemporaryDirectory(prefix="tfm-") as log_dir,
        _environment_for(size),
    ):
        rendezvous = Rendezvous(layout, stop, join_seconds=join_seconds)
        spec = WorkerSpec(
            role="tfm",
            local_world_size=size,
            rdzv_handler=rendezvous,
            entrypoint=command[0],
            args=tuple(command[1:]),
            max_restarts=0,
            monitor_interval=POLL_SECONDS,
        )
        agent = LocalElasticAgent(
            spec,
            DefaultLogsSpecs(log_dir),
            exit_barrier_timeout=_EXIT_BARRIER_SECONDS,
            **_shutdown_timeout(),
        )
        rendezvous.worker_group = agent.get_worker_group()
        try:
            _raise_root_cause(agent.run(), rendezvous, stop)
        except KeyboardInterrupt:
            raise InterruptedRunError(UNSAVED, exit_code=130) from None
        finally:
            rendezvous.leave()
    return stop.exit_code or 0


def _shutdown_timeout() -> dict[str, Any]:
    """Return the agent's limit for ending processes; torch 2.11 has a fixed one of 30 seconds."""
    name = "shutdown_timeout"
    return {name: _SHUTDOWN_SECONDS} if name in signature(LocalElasticAgent).parameters else {}


def _raise_root_cause(result: RunResult, rendezvous: Rendezvous, stop: StopRequests) -> None:
    """Raise the root cause if processes have failed."""
    if not result.is_failed():
        return
    failures = [Failure.from_elastic(rank, each) for rank, each in result.failures.items()]
    failure = root_cause(failures)
    # The signal came before the process had a handler: it was killed, or Python exited for Ctrl-C.
    if stop.received is not None and failure.exit_code in (-stop.received, 128 + stop.received):
        raise InterruptedRunError(
            f"stopped before the run could save: {RESUME}", exit_code=stop.exit_code or 1
        )
    if failure.trace:
        say(failure.trace.rstrip())
    raise rendezvous.share_failure(failure.error, is_consequence=failure.is_consequence)


@contextlib.contextmanager
def _environment_for(local_size: int) -> Iterator[None]:
    """Set the variables that processes inherit, besides those that elastic sets for each."""
    before = dict(os.environ)
    # All processes together use as many threads as there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // local_size)))
    # "python -m" puts the working directory on sys.path, where files may shadow modules; the tfm
    # script does not.
    if not {"", str(Path.cwd())} & set(sys.path):
        os.environ["PYTHONSAFEPATH"] = "1"
    # Elastic's own handlers would raise an error at any point of its code.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
