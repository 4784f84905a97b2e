"""Several processes for one command, on one machine or more, run by torch's elastic agent."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from tfm.device.cpu import num_cores
from tfm.distributed.failures import RESUME, Failure, cause
from tfm.distributed.interruption import InterruptedRunError, StopRequests
from tfm.distributed.layout import Layout
from tfm.distributed.rendezvous import POLL_SECONDS, Rendezvous
from tfm.errors import UsageError
from tfm.reporting import say

_JOIN_SECONDS = 600
# How long machines whose processes have ended wait for those of the others.
_EXIT_BARRIER_SECONDS = 60
# How long processes have to end that can no longer save, or must stop at once.
_SHUTDOWN_SECONDS = 5


def num_local_processes(layout: Layout) -> int:
    """How many processes this machine is to have.

    Raises:
        UsageError: More than it has GPUs.
    """
    if layout.device != "cuda":
        return layout.local_size or 1
    num_gpus = torch.cuda.device_count()
    if not num_gpus:
        raise UsageError("--gpus: torch sees no GPU on this machine; --processes N uses its CPU")
    asked = layout.local_size or num_gpus
    if asked > num_gpus:
        raise UsageError(f"--gpus is {asked}, but torch sees {num_gpus} on this machine")
    return asked


def launch(layout: Layout, command: Sequence[str], *, join_seconds: int = _JOIN_SECONDS) -> int:
    """Run a command in several processes until all of them have ended.

    Each finds in its environment which of them it is, as from torchrun. A signal to stop is passed
    on to all.

    Args:
        layout: How many processes, on how many machines.
        command: The program and its arguments.
        join_seconds: How long to wait for the other machines.

    Returns:
        The exit code: 0, or that of Ctrl-C if the processes have saved and stopped for it.

    Raises:
        UsageError: There are fewer GPUs, or machines contradict each other.
        FailedProcessError: A process has failed, or the machines do not find each other.
        InterruptedRunError: A signal has stopped the processes before they could save.
    """
    size = num_local_processes(layout)
    _silence_elastic()
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
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        rendezvous.worker_group = agent.get_worker_group()
        try:
            _check(agent.run(), rendezvous, stop)
        except KeyboardInterrupt:
            raise InterruptedRunError("stopped", exit_code=130) from None
        finally:
            rendezvous.leave()
    return stop.exit_code or 0


def _check(result: RunResult, rendezvous: Rendezvous, stop: StopRequests) -> None:
    """Raise the cause of the failures of the processes, if there are any."""
    if not result.is_failed():
        return
    first = cause([Failure.of(rank, ended) for rank, ended in result.failures.items()])
    # Killed by the signal, or by what Python makes of Ctrl-C: it came before they listened to it.
    if stop.received is not None and first.exit_code in (-stop.received, 128 + stop.received):
        raise InterruptedRunError(
            f"stopped before the run could save: {RESUME}", exit_code=stop.exit_code or 1
        )
    if first.trace:
        say(first.trace.rstrip())
    raise rendezvous.share(first.error, is_consequence=first.is_consequence)


def _silence_elastic() -> None:
    """Silence the logs of elastic, which would report each failure and signal a second time."""
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())


@contextlib.contextmanager
def _environment_for(local_size: int) -> Iterator[None]:
    """Set what the processes inherit, besides what elastic sets for each of them."""
    before = dict(os.environ)
    # All processes together have as many threads as there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // local_size)))
    # "python -m" would let files of the working directory stand in for modules, where tfm does not.
    if not {"", str(Path.cwd())} & set(sys.path):
        os.environ["PYTHONSAFEPATH"] = "1"
    # The signals are ours to handle: elastic would raise an error from them, wherever it stands.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
