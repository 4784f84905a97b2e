"""Check that two nodes train the same model as one, and that neither runs on without the other.

The nodes are two network namespaces of this machine, joined by a virtual cable, each with its own
loopback and address; they share the file system, as on a cluster. The losses must equal those of a
run in one process. In a second run, one node is killed, and in a third the cable is cut: the
remaining processes must end by themselves, soon after the timeout. Needs root and iproute2.

    sudo .venv/bin/python benchmarks/faults/hosts.py data/multi30k-en-de
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Job, Options, Out, Training, fail, finish, largest_difference

_HOSTS = ("tfm-host-0", "tfm-host-1")
_CABLES = ("tfm-cable-0", "tfm-cable-1")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_MARGIN_SECONDS = 40.0


def main(
    data: Data,
    options: Options = None,
    processes: Annotated[int, typer.Option(help="Number of processes per node.", min=1)] = 1,
    stall_minutes: Annotated[float, typer.Option(help="Timeout of the watchdog.")] = 0.1,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 60,
    tolerance: Annotated[float, typer.Option(help="Largest relative difference of a loss.")] = 1e-4,
    out: Out = Path("runs/faults/hosts"),
) -> None:
    """Train on two nodes, kill one, and cut the cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: namespaces need root and iproute2")
        return
    shutil.rmtree(out, ignore_errors=True)
    # Both runs draw dropout for the same microbatches.
    num_dropout_shards = str(len(_HOSTS) * processes)
    shared = (
        "--max-steps",
        str(steps),
        "--num-dropout-shards",
        num_dropout_shards,
        *(options or ()),
    )
    single = Training(data=data, run_dir=out / "single", options=(*shared, "--device", "cpu"))
    finish(single)
    shared = (*shared, "--processes", str(processes), "--stall-minutes", str(stall_minutes))
    with _two_hosts():
        run = _Run(data, out / "together", shared)
        for host, job in zip(_HOSTS, run.start(), strict=True):
            if job.end() != 0:
                fail(f"{host} failed", job)
        difference = largest_difference(single, run.training)
        print(f"{steps} steps on two nodes: losses differ by at most {difference:.1e}")
        if difference > tolerance:
            fail("the runs are not equal")
        _check_killed(_Run(data, out / "killed", shared), 60 * stall_minutes)
        _check_cut(_Run(data, out / "cut", shared), 60 * stall_minutes)


class _Run:
    """A training on both hosts, in a shared run folder."""

    def __init__(self, data: Path, run_dir: Path, options: tuple[str, ...]) -> None:
        self.training = Training(data=data, run_dir=run_dir, options=options)

    def start(self) -> list[Job]:
        """Start it on both hosts; on host 1 first, because the order must not matter."""
        jobs = [self._start_on(rank) for rank in (1, 0)]
        return jobs[::-1]

    def _start_on(self, rank: int) -> Job:
        training = Training(
            data=self.training.data,
            run_dir=self.training.run_dir,
            options=(
                *self.training.options,
                *("--nodes", str(len(_HOSTS)), "--node-rank", str(rank)),
                *("--rendezvous", f"{_ADDRESSES[0]}:29500"),
            ),
        )
        return training.start(prefix=("ip", "netns", "exec", _HOSTS[rank]))

    def start_and_wait(self) -> list[Job]:
        """Start it and wait until it has made some steps."""
        jobs = self.start()
        jobs[0].wait_until(lambda: self.training.logged_step() > 10)
        return jobs


def _check_cut(run: _Run, timeout_seconds: float) -> None:
    jobs = run.start_and_wait()
    _ip("link", "set", _CABLES[0], "down", host=_HOSTS[0])
    _check_end(jobs, timeout_seconds, "cable cut")


def _check_killed(run: _Run, timeout_seconds: float) -> None:
    first, second = run.start_and_wait()
    second.kill()
    _check_end([first], timeout_seconds, "node 1 killed")


def _check_end(jobs: list[Job], timeout_seconds: float, fault: str) -> None:
    fault_at = time.monotonic()
    for host, job in zip(_HOSTS, jobs, strict=False):
        code = job.end(within_seconds=timeout_seconds + _MARGIN_SECONDS)
        seconds = time.monotonic() - fault_at
        if code != 1:
            fail(f"{fault}: {host} ended with exit code {code}", job)
        if orphans := job.orphans():
            fail(f"{fault}: processes {orphans} are left on {host}", job)
        print(f"{fault}: {host} ended after {seconds:.1f} s\n  {job.lines[-1]}")


@contextlib.contextmanager
def _two_hosts() -> Iterator[None]:
    for host in _HOSTS:  # left by a run of this script that was killed
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)
    try:
        for host in _HOSTS:
            subprocess.run(["ip", "netns", "add", host], check=True)
        _ip("link", "add", _CABLES[0], "type", "veth", "peer", "name", _CABLES[1])
        for host, cable, address in zip(_HOSTS, _CABLES, _ADDRESSES, strict=True):
            _ip("link", "set", cable, "netns", host)
            _ip("address", "add", f"{address}/24", "dev", cable, host=host)
            _ip("link", "set", cable, "up", host=host)
            _ip("link", "set", "lo", "up", host=host)
        yield
    finally:
        for host in _HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False)


def _ip(*arguments: str, host: str | None = None) -> None:
    namespace = ("-netns", host) if host else ()
    subprocess.run(["ip", *namespace, *arguments], check=True)


if __name__ == "__main__":
    typer.run(main)
