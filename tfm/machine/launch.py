"""Start the processes of a run with torch's launcher, and report their failure as one error."""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tfm.errors import InterruptedRunError, LostPeersError, TrainingError
from tfm.machine.cpu import num_cores
from tfm.machine.interruption import (
    RESUME,
    SAVING_SECONDS,
    StopRequests,
    announce_restart,
    failures_in,
    report_in,
)
from tfm.machine.processes import Placement
from tfm.machine.search_path import same_search_path


def launch(placement: Placement, command: Sequence[str]) -> int:
    """Run a command in several processes, as torchrun does, until all have ended.

    After a failure, all of them are started again, as often as the placement allows it. torch
    forwards signals to the processes, and ends all of them if one fails. It changes the environment
    and the signal handlers of this process, which should do nothing else.

    Returns:
        The exit code: 0, or the code of Ctrl-C if the processes have saved and stopped for it.
    """
    num_processes = placement.num_local_processes()
    _set_environment(num_processes)
    # These logs repeat each failure and signal for each process.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    signals = _signals_to_handle()
    number = 0
    while True:
        # Until torch has started the processes, a signal ends this one.
        for name in signals:
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        try:
            with same_search_path():
                return _run(num_processes, signals, command)
        except TrainingError as error:
            if number >= placement.restarts or not error.restart_helps:
                raise
            number += 1
            announce_restart(number, placement.restarts, str(error))


def _run(num_processes: int, signals: Sequence[str], command: Sequence[str]) -> int:
    """Start the processes once; return the exit code, and raise, as `launch` does."""
    port = get_free_port()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="tfm-") as log_dir:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            run_id="tfm",
            # Unlike c10d, this backend unpickles nothing that comes over the network.
            rdzv_backend="static",
            rdzv_endpoint=f"127.0.0.1:{port}",
            rdzv_configs={"rank": 0},
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir),
            signals_to_handle=",".join(signals),
        )
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as failed:
            raise _root_cause(failed.failures) from None
        except dist.DistError as error:  # another program has taken the port
            reason = str(error).partition("\n")[0]
            raise LostPeersError(f"the processes cannot meet ({reason}); {RESUME}") from None
        except SignalException as stopped:
            return _exit_code_after(stopped.sigval, Path(log_dir))
    return 0


def _set_environment(num_processes: int) -> None:
    """Set the environment variables that all processes inherit; torch sets others for each."""
    # All processes together use as many threads as there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_SECONDS))


def _signals_to_handle() -> list[str]:
    """Return the signals to forward; signals that are ignored, as under nohup, stay ignored."""
    numbers = map(signal.Signals, StopRequests.EXIT_CODES)
    return [number.name for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def _root_cause(failures: Mapping[int, ProcessFailure]) -> TrainingError:
    """Return the error of the process that most likely failed first, by rank of its processes."""

    def sort_key(rank: int) -> tuple[bool, int, bool]:
        failure = failures[rank]
        message, facts = report_in(failure.error_file_data)
        # torch sends SIGTERM to the others after the first failure.
        is_terminated = not message and failure.exitcode == -signal.SIGTERM
        return facts.get("is_consequence", is_terminated), failure.timestamp, not message

    rank = min(failures, key=sort_key)
    failure = failures[rank]
    message, facts = report_in(failure.error_file_data)
    if message and not facts.get("py_callstack"):
        return _reported_error(message, facts)
    if message:
        sys.stderr.write(facts["py_callstack"])
        problem = f"hit a bug: {message}"
    elif failure.exitcode == -signal.SIGKILL:
        problem = "was killed by SIGKILL (out of memory?)"
    elif failure.exitcode < 0:
        problem = f"was killed by {failure.signal_name()}"
    else:
        problem = f"exited with code {failure.exitcode} without an error message"
    host = os.uname().nodename
    error = TrainingError(f"rank {rank} (host {host}, process {failure.pid}) {problem}; {RESUME}")
    error.restart_helps = True
    return error


def _exit_code_after(number: signal.Signals, log_dir: Path) -> int:
    """Return the exit code after a signal made the processes save and stop."""
    reports = failures_in(log_dir)
    for message, facts in reports:
        if message:
            raise _reported_error(message, facts)
    exit_code = StopRequests.EXIT_CODES[number]
    if not reports:
        reason = f"stopped before the run could save: {RESUME}"
        raise InterruptedRunError(reason, exit_code=exit_code or 1)
    return exit_code


def _reported_error(message: str, facts: Mapping[str, Any]) -> TrainingError:
    """Return the error that a process has reported."""
    kind = LostPeersError if facts["is_consequence"] else TrainingError
    error = kind(message, exit_code=facts["exit_code"])
    error.restart_helps = not facts["recurs"]
    return error
