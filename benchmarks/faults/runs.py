"""A small training, its processes and its files, for the scripts of this folder."""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

# A step takes a tenth of a second, and every fifth is saved. Options of the command line follow
# these and override them.
SMALL = (
    *("--arch", "tiny", "--d-model", "64", "--d-ff", "128", "--num-heads", "2"),
    *("--batch-tokens", "1000", "--bucket-tokens", "500", "--max-tokens", "500"),
    *("--checkpoint-steps", "5", "--keep-last", "5", "--log-steps", "1"),
    *("--validation-beam", "0", "--best-metric", "loss", "--precision", "fp32", "--seed", "7"),
    # A fixed number of threads makes runs reproducible to the bit on a busy machine.
    *("--threads", "2"),
)
_MARK = "TFM_FAULTS_JOB"
_PATIENCE_SECONDS = 1200.0

Data = Annotated[Path, typer.Argument(metavar="DATA", help="A prepared dataset folder.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OPTION …]", help="More options of tfm train, after --."),
]
Out = Annotated[Path, typer.Option(help="Folder for runs; its content is replaced.")]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that can be started with the command line, and resumed.

    Attributes:
        data: The dataset folder.
        run_dir: The run folder.
        options: Options of tfm train, besides SMALL.
    """

    data: Path
    run_dir: Path
    options: tuple[str, ...] = ()

    def start(self, *, prefix: tuple[str, ...] = ()) -> "Job":
        """Start or resume it, optionally under another command."""
        return Job(
            [
                *prefix,
                *(sys.executable, "-m", "tfm", "train", str(self.data)),
                *("--run", str(self.run_dir), *SMALL, *self.options),
            ]
        )

    def logged_step(self) -> int:
        """Return the last step in metrics.jsonl."""
        return max((record["step"] for record in self.records()), default=0)

    def records(self) -> list[dict[str, Any]]:
        """Return the complete lines of metrics.jsonl."""
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A kill may have truncated the last one.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self) -> dict[int, float]:
        """Return the training loss of each step."""
        return {r["step"]: r["loss"] for r in self.records() if r["kind"] == "train"}

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted((self.run_dir / "checkpoints").glob("step-????????"))

    def saved_step(self) -> int:
        """Return the step of the newest checkpoint."""
        present = self.checkpoints()
        return int(present[-1].name.removeprefix("step-")) if present else 0

    def partial_checkpoints(self) -> list[str]:
        """Return the names of checkpoints that are or were being written."""
        folder = self.run_dir / "checkpoints"
        try:
            return [name for name in os.listdir(folder) if name.endswith(".partial")]  # noqa: PTH208
        except FileNotFoundError:
            return []

    def weights(self) -> bytes:
        """Return the bytes of the newest weights."""
        return (self.checkpoints()[-1] / "model.safetensors").read_bytes()


@dataclass
class Job:
    """A running command with all its descendants, which a variable in their environment marks."""

    command: list[str]
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read while the job exists
        self.process = subprocess.Popen(
            self.command,
            env={"OMP_NUM_THREADS": "1", **os.environ, _MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C in the terminal stops the script only
        )

    @property
    def lines(self) -> list[str]:
        """Its lines on stderr so far."""
        # Seeking would move the position where the processes write.
        content = os.pread(self._stderr.fileno(), 1 << 24, 0)
        return content.decode(errors="replace").splitlines()

    @property
    def is_running(self) -> bool:
        """Whether the first process is running."""
        return self.process.poll() is None

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started

    def pids(self) -> list[int]:
        """Return all its running processes, including those whose parents have ended."""
        marked = f"{_MARK}={self.mark}"
        return [pid for pid, variables in _environments() if marked in variables]

    def workers(self) -> dict[int, int]:
        """Return the process of each rank, from the environment that torch elastic sets."""
        marked, ranks = f"{_MARK}={self.mark}", {}
        for pid, variables in _environments():
            if marked in variables:
                ranks |= {int(v[5:]): pid for v in variables if v.startswith("RANK=")}
        return dict(sorted(ranks.items()))

    def kill(self) -> None:
        """Send SIGKILL to all its processes until none is left."""
        while pids := self.pids():
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        within_seconds: float = _PATIENCE_SECONDS,
        poll_seconds: float = 0.05,
    ) -> None:
        """Wait for a condition or for the end of the first process."""
        deadline = time.monotonic() + within_seconds
        while self.is_running and not condition():
            if time.monotonic() > deadline:
                fail(f"waited in vain for {within_seconds:.0f} s", self)
            time.sleep(poll_seconds)

    def end(self, *, within_seconds: float = _PATIENCE_SECONDS) -> int:
        """Wait until the first process ends by itself; return its exit code."""
        self.wait_until(lambda: False, within_seconds=within_seconds)
        return self.process.wait()

    def orphans(self, *, within_seconds: float = 2.0) -> list[int]:
        """Return the processes that still run a moment after the first one has ended."""
        deadline = time.monotonic() + within_seconds
        while (pids := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return pids


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def finish(training: Training) -> Job:
    """Run a training to its end; fail if it fails."""
    job = training.start()
    if job.end() != 0:
        fail(f"{training.run_dir}: exit code {job.process.returncode}", job)
    return job


def check_whole(checkpoint: Path) -> None:
    """Verify the checksums of a checkpoint."""
    record = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    for name, digest in record["sha256"].items():
        content = (checkpoint / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            fail(f"{checkpoint / name} is damaged")


def check_equal(disturbed: Training, undisturbed: Training) -> None:
    """Check that two trainings have the same losses and, byte for byte, the same weights."""
    if disturbed.saved_step() != undisturbed.saved_step():
        fail(f"{disturbed.run_dir} ended at step {disturbed.saved_step()}")
    if disturbed.losses() != undisturbed.losses():
        fail(f"{disturbed.run_dir} and {undisturbed.run_dir} have different losses")
    if disturbed.weights() != undisturbed.weights():
        fail(f"{disturbed.run_dir} and {undisturbed.run_dir} have different weights")


def largest_difference(one: Training, other: Training) -> float:
    """Return the largest relative difference of the losses of two trainings of the same steps."""
    losses, others = one.losses(), other.losses()
    if losses.keys() != others.keys():
        fail(f"{one.run_dir} and {other.run_dir} have losses of different steps")
    return max(abs(others[step] - loss) / loss for step, loss in losses.items())


def fail(problem: str, job: Job | None = None) -> NoReturn:
    """End the script with a failed check."""
    if job is not None:
        print("\n".join(f"  {line}" for line in job.lines[-15:]))
        job.kill()
    print(f"FAILED: {problem}")
    raise typer.Exit(1)


def _environments() -> Iterator[tuple[int, list[str]]]:
    """Yield process id and environment of all processes that this user may inspect."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # it has just ended, or belongs to another user
        yield int(path.parent.name), content.decode(errors="replace").split("\0")
