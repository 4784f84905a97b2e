"""Start the processes of a run with torch's launcher, and report their failure as one error.

The launchers of several nodes tell each other when one of them ends early, and why.
"""

import contextlib
import logging
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tfm.device.cpu import num_cores
from tfm.distributed.interruption import (
    RESUME,
    SAVING_SECONDS,
    StopRequests,
    failures_in,
    report_in,
)
from tfm.distributed.placement import Placement
from tfm.errors import InterruptedRunError, LostPeersError, TrainingError
from tfm.reporting import say

_POLL_SECONDS = 2.0
# After another node has ended, the processes of this node have this time to end before they are
# stopped.
_GRACE_SECONDS = 10.0
_CAUSE_SECONDS = 3.0  # to connect, to wait for the cause, and to let the others read it
_ENDED, _CAUSE = "ended", "cause"  # keys of the store


class OtherNodes:
    """A context manager that ends this node's launcher soon after another node's has ended.

    Its processes notice that by themselves, unless one is frozen (SIGSTOP, a dead file server). If
    they still run after a while, the launcher gets a SIGTERM. If the launcher fails because
    processes of other nodes were lost, the error of the node that failed first is raised instead.

    The launchers share the store of the rendezvous, which ends with the launcher of node 0.

    Attributes:
        have_ended: Whether this launcher was stopped because another one had ended.
    """

    def __init__(self, endpoint: str, *, node_rank: int) -> None:
        self.have_ended = False
        host, _, port = endpoint.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._node_rank = node_rank
        self._is_leaving = threading.Event()

    def __enter__(self) -> "OtherNodes":
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_leaving.set()
        cause = b""
        # Node 0 has ended, or no node has given a cause.
        with contextlib.suppress(OSError, dist.DistError):
            if error is not None:
                store = self._connect()
                store.set(_ENDED, "")
                if isinstance(error, LostPeersError):
                    cause = store.get(_CAUSE)
                elif isinstance(error, TrainingError):
                    store.set(_CAUSE, str(error))
        if isinstance(error, TrainingError) and self._node_rank == 0:
            time.sleep(_CAUSE_SECONDS)
        if cause:
            raise TrainingError(cause.decode()) from None

    def _follow(self) -> None:
        """Stop this launcher if another one has ended."""
        store, has_connected = None, False
        while not self._is_leaving.wait(_POLL_SECONDS):
            try:
                store = store or self._connect()
                has_connected = True
                if store.check([_ENDED]):
                    break
            except dist.DistError:
                store = None
            except ConnectionRefusedError:
                if has_connected:  # node 0 has ended; before, it has not started
                    break
            except OSError:  # the network is down, which the processes notice
                continue
        if not self._is_leaving.wait(_GRACE_SECONDS):
            self.have_ended = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _connect(self) -> Any:
        """Connect to the store; raise OSError or DistError if that fails."""
        # torch would log at length that nobody listens.
        socket.create_connection(self._address, _CAUSE_SECONDS).close()
        return dist.TCPStore(  # type: ignore[attr-defined]  # no stub
            *self._address, timeout=timedelta(seconds=_CAUSE_SECONDS), wait_for_workers=False
        )


_JOIN_SECONDS = 600


def launch(
    placement: Placement, command: Sequence[str], *, join_seconds: int = _JOIN_SECONDS
) -> int:
    """Run a command in several processes, as torchrun does, until all have ended.

    torch forwards signals to the processes, and ends all of them if one fails. It changes the
    environment and the signal handlers of this process, which should do nothing else.
    `join_seconds` limits the wait for other nodes.

    Returns:
        The exit code: 0, or the code of Ctrl-C if the processes have saved and stopped for it.

    Raises:
        UsageError: There are too few GPUs.
        TrainingError: A process has failed, or the nodes do not find each other.
        InterruptedRunError: A signal has stopped the processes before they could save.
    """
    num_processes = placement.num_local_processes()
    port = get_free_port()  # type: ignore[no-untyped-call]
    endpoint = placement.rendezvous or f"127.0.0.1:{port}"
    _set_environment(placement, num_processes)
    # These logs repeat each failure and signal for each process.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    signals = _signals_to_handle()
    if signal.SIGINT.name in signals:
        # torch waits for the other nodes in C++, where Python does not see Ctrl-C; torch handles it
        # as soon as it has started the processes.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if placement.nodes > 1:
        say(f"node {placement.node_rank} waits for the other nodes at {endpoint}")
    with tempfile.TemporaryDirectory(prefix="tfm-") as log_dir:
        config = LaunchConfig(
            min_nodes=placement.nodes,
            max_nodes=placement.nodes,
            nproc_per_node=num_processes,
            run_id="tfm",
            # Unlike c10d, this backend unpickles nothing that comes over the network, and needs
            # no answer from node 0 to notice that a local process has failed.
            rdzv_backend="static",
            rdzv_endpoint=endpoint,
            rdzv_configs={"rank": placement.node_rank, "timeout": join_seconds},
            max_restarts=placement.restarts,
            logs_specs=DefaultLogsSpecs(log_dir),
            signals_to_handle=",".join(signals),
        )
        others = (
            OtherNodes(endpoint, node_rank=placement.node_rank) if placement.nodes > 1 else None
        )
        try:
            with others or contextlib.nullcontext():
                _run(config, command)
        except SignalException as stopped:
            reason = "stopped before the run could save"
            if others is not None and others.have_ended:
                reason = "another node has ended; a process of this one did not, and was killed"
            return _exit_code_after(stopped.sigval, Path(log_dir), if_unsaved=reason)
        except dist.DistError as error:
            reason = str(error).partition("\n")[0]
            raise TrainingError(
                f"the nodes did not meet at {endpoint} within {join_seconds} s ({reason}): start "
                "the same command on each node, with its own --node-rank from 0, and check that "
                "--rendezvous is an address of node 0 with a free port, which the others can reach"
            ) from None
    return 0


def _run(config: LaunchConfig, command: Sequence[str]) -> None:
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as failed:
        raise _root_cause(failed.failures) from None


def _set_environment(placement: Placement, num_processes: int) -> None:
    """Set the environment variables that all processes inherit; torch sets others for each."""
    # All processes together use as many threads as there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_SECONDS))
    # "python -m" puts the working directory on sys.path, where files may shadow modules; the tfm
    # script does not.
    if not {"", str(Path.cwd())} & set(sys.path):
        os.environ["PYTHONSAFEPATH"] = "1"
    if placement.nodes > 1 and (interface := _interface_towards(placement.rendezvous)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _interface_towards(endpoint: str) -> str | None:
    """Return the network interface towards HOST:PORT; None if it is not found.

    By default, gloo uses the address of the host name, which is often that of the loopback.
    """
    host, _, port = endpoint.rpartition(":")
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # a datagram socket sends nothing here
                own = str(probe.getsockname()[0]).partition("%")[0]
                names = _ipv6_interfaces() if family == socket.AF_INET6 else _ipv4_interfaces(probe)
                if (found := names.get(socket.inet_pton(family, own))) is not None:
                    return found
    return None


def _ipv4_interfaces(probe: socket.socket) -> dict[bytes, str]:
    """Return the names of network interfaces by their IPv4 address, on Linux."""
    import fcntl  # not part of Python on Windows

    get_address, found = 0x8915, {}  # SIOCGIFADDR
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # an interface without an address
            answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
            found[answer[20:24]] = name
    return found


def _ipv6_interfaces() -> dict[bytes, str]:
    """Return the names of network interfaces by their IPv6 address, on Linux."""
    lines = Path("/proc/net/if_inet6").read_text().splitlines()
    return {bytes.fromhex(line.split()[0]): line.split()[-1] for line in lines}


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
        kind = LostPeersError if facts["is_consequence"] else TrainingError
        return kind(message, exit_code=facts["exit_code"])
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
    return TrainingError(f"rank {rank} (host {host}, process {failure.pid}) {problem}; {RESUME}")


def _exit_code_after(number: signal.Signals, log_dir: Path, *, if_unsaved: str) -> int:
    """Return the exit code after a signal for which the processes have saved and stopped.

    Raises TrainingError if one has failed to save, and InterruptedRunError if none has saved.
    """
    attempts = sorted(log_dir.glob("*/attempt_*"), key=lambda path: int(path.name[8:]))
    reports = failures_in(attempts[-1]) if attempts else []
    for message, facts in reports:
        if message:
            raise TrainingError(message, exit_code=facts["exit_code"])
    exit_code = StopRequests.EXIT_CODES[number]
    if not reports:
        raise InterruptedRunError(f"{if_unsaved}: {RESUME}", exit_code=exit_code or 1)
    return exit_code
