"""Runs of two processes that are killed or preempted, and start again, keep their weights."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from helpers import metrics_of, same_weights, wait_until
from slurm import install_slurm
from torch.distributed.elastic.utils.distributed import get_free_port

from tfm.config import run_toml
from tfm.folders.run_folder import checkpoints

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")

TFM = "from tfm.cli.main import main; main()"
TORCHRUN = "from torch.distributed.run import main; main()"
SECONDS = 600  # on a busy machine


def child_of(launcher):
    path = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    return int(path.read_text().split()[-1])


@pytest.fixture(scope="module")
def settings(tiny_run, tmp_path_factory):
    """A file of settings."""
    path = tmp_path_factory.mktemp("settings") / "config.toml"
    path.write_text(run_toml(tiny_run(training={"max_steps": 60, "checkpoint_steps": 10})))
    return path


@pytest.fixture(scope="module")
def whole_run(data_dir, settings, tmp_path_factory, fork_python):
    """An uninterrupted run of two processes."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    flags = ["--run", run_dir, "--config", settings, "--processes", 2]
    launcher = fork_python(TFM, "train", data_dir, *flags)
    _, errors = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0, errors
    return run_dir


@pytest.fixture
def train(data_dir, settings, tmp_path):
    """The command line of a run."""
    return ["train", data_dir, "--run", tmp_path / "run", "--config", settings]


@pytest.fixture
def torchrun(fork_python, train, tmp_path):
    """Start torchrun for the first of two machines, which holds the rendezvous, or the second."""
    where = ["--nnodes", 2, "--nproc-per-node", 1, "--local-addr", "127.0.0.1"]
    where += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{get_free_port()}"]
    flags = ["--max-restarts", 3, "--monitor-interval", 0.1, "-m", "--", "tfm", *train]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(tmp_path)}

    def start(*, hosts):
        is_host = ["--rdzv-conf", f"is_host={int(hosts)}"]
        return fork_python(TORCHRUN, *where, *is_host, *flags, **variables)

    return lambda: start(hosts=True), lambda: start(hosts=False)


def wait_for_checkpoint(run_dir):
    wait_until(lambda: checkpoints(run_dir), seconds=SECONDS)


def finish(*launchers):
    """Wait for launchers that succeed; return what the first one writes on stderr."""
    errors = [launcher.communicate(timeout=SECONDS)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0] * len(launchers), errors
    return errors[0]


def test_a_run_whose_process_is_killed_restarts_by_itself(fork_python, train, whole_run, tmp_path):
    launcher = fork_python(TFM, *train, "--processes", 2, "--restarts", 1)
    wait_for_checkpoint(tmp_path / "run")
    os.kill(child_of(launcher), signal.SIGKILL)
    assert re.search("restart 1 of 1: rank .*was killed by SIGKILL", finish(launcher))
    assert same_weights(tmp_path / "run", whole_run)


@pytest.mark.parametrize("killed", ["process", "second", "first"])
def test_torchrun_of_two_machines_restarts_together(torchrun, whole_run, tmp_path, killed):
    first, second = (start() for start in torchrun)
    wait_for_checkpoint(tmp_path / "run")
    if killed == "process":
        os.kill(child_of(second), signal.SIGKILL)
    elif killed == "second":
        second.kill()
        second = torchrun[1]()
    else:
        first.kill()
        second.communicate(timeout=SECONDS)
        assert second.returncode == 1  # without the rendezvous, it ends, too
        first, second = (start() for start in torchrun)
    finish(first, second)
    assert same_weights(tmp_path / "run", whole_run)


def test_a_signal_to_one_torchrun_saves_and_ends_both(torchrun, whole_run, tmp_path):
    launchers = [start() for start in torchrun]
    wait_for_checkpoint(tmp_path / "run")
    launchers[1].send_signal(signal.SIGTERM)
    for launcher in launchers:
        launcher.communicate(timeout=SECONDS)
    assert metrics_of(tmp_path / "run")[-1]["state"] == "stopped"
    finish(*(start() for start in torchrun))
    assert same_weights(tmp_path / "run", whole_run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_step_of_slurm_saves_after_a_signal_and_resumes(train, whole_run, tmp_path, number):
    variables = install_slurm(tmp_path / "bin")

    def srun():
        return subprocess.Popen(
            [tmp_path / "bin" / "srun", "tfm", *map(str, train)],
            env=os.environ | variables, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    step = srun()
    wait_for_checkpoint(tmp_path / "run")
    step.send_signal(number)
    assert "stopped and saved at step" in finish(step)
    assert ", 2 processes" in finish(srun())
    assert same_weights(tmp_path / "run", whole_run)
