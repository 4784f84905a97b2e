"""Signals that ask a stage to stop."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import wait_until

from tfm.errors import InterruptedRunError
from tfm.machine import interruption
from tfm.machine.interruption import StopRequests
from tfm.machine.world import World

pytestmark = pytest.mark.usefixtures("handles_sighup")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


@pytest.mark.parametrize(("number", "code"), list(zip(SIGNALS, [130, 0, 0, 0], strict=True)))
def test_a_signal_is_only_recorded(number, code):
    with StopRequests() as stop:
        assert (stop.received, stop.exit_code) == (None, None)
        signal.raise_signal(number)
        assert (stop.received, stop.exit_code) == (number, code)


def test_the_first_signal_counts():
    with StopRequests() as stop:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == signal.SIGUSR1


def test_another_ctrl_c_stops_at_once():
    with StopRequests():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequests("stopping"):
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_leave_signals_alone():
    before = [signal.getsignal(number) for number in SIGNALS]

    def enter():
        with StopRequests("stopping") as stop:
            assert [signal.getsignal(number) for number in SIGNALS] == before
            assert stop.received is None

    with ThreadPoolExecutor() as pool:
        pool.submit(enter).result()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_ctrl_c_is_answered_while_modules_are_loading(tmp_path):
    (tmp_path / "typer.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    command = [sys.executable, "-m", "tfm", "train"]
    search_path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search_path}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "tfm: stopped\n")


def test_signals_are_answered_in_the_middle_of_a_long_microbatch(data_dir, tmp_path, fork_python):
    flags = "--arch base --batch-tokens 100000 --max-tokens 100000 --device cpu --precision fp32"
    flags += " --max-steps 3 --num-encoder-layers 2 --num-decoder-layers 2"
    process = fork_python(
        "from tfm.cli.main import main; main()",
        *("train", data_dir, "--run", tmp_path / "run", *flags.split()),
    )

    wait_until(lambda: f"{tmp_path / 'run'} on " in process.errors, process)
    time.sleep(0.3)  # into the first step, of many seconds
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "without saving\n" in process.errors, process)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=5)
    assert (process.returncode, out) == (130, "")
    assert err.endswith(
        "train: stopping after the current microbatch, then saving; press Ctrl-C again to stop now "
        "without saving\n"
        "tfm: stopped without saving; the same command resumes from the last checkpoint, if any\n"
    )


@pytest.mark.parametrize(("rank", "announced"), [("0", "stopping\n"), ("1", "")])
def test_rank_0_announces_once_that_it_stops(monkeypatch, capfd, rank, announced):
    launcher = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # fmt: skip
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    with StopRequests("stopping"):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert capfd.readouterr().err == announced


@pytest.fixture
def launched(monkeypatch):
    """Let this process have a launcher; restore the handlers that it leaves at SIG_IGN."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "error.json")
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("launched")
def test_a_second_signal_from_the_launcher_does_not_kill_a_process_as_it_ends():
    with StopRequests() as stop:
        signal.raise_signal(signal.SIGUSR1)
    for number in SIGNALS:
        # Python restores its own handlers before it ends, but keeps SIG_IGN.
        assert signal.getsignal(number) == signal.SIG_IGN
    assert stop.received == signal.SIGUSR1


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("local_rank", "nodes", "received", "sent"),
    [(0, 2, None, [(77, 15)]), (1, 2, None, []), (0, 1, None, []), (0, 2, signal.SIGTERM, [])],
)
def test_the_launcher_stops_if_only_another_node_was_signalled(
    monkeypatch, local_rank, nodes, received, sent
):
    rank = 2 * nodes - 2 + local_rank
    world = World(rank=rank, size=2 * nodes, local_rank=local_rank, local_size=2)
    monkeypatch.setattr(interruption, "current_world", lambda: world)
    monkeypatch.setattr(os, "getppid", lambda: 77)
    calls = []
    monkeypatch.setattr(os, "kill", lambda *call: calls.append(call))
    with contextlib.suppress(InterruptedRunError), StopRequests() as stop:
        stop.received = received
        raise InterruptedRunError("saved")
    assert calls == sent


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


_WRITE_TO_LOST_TERMINAL = """
import os, sys, time
from tfm.machine.interruption import StopRequests
with StopRequests() as stop:
    print("ready", file=sys.stderr, flush=True)
    while stop.received is None:
        time.sleep(0.01)
    print("saving", file=sys.stderr, flush=True)
    open(sys.argv[1], "w").close()
"""


def test_a_run_saves_though_its_terminal_is_closed(tmp_path):
    terminal, process_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _WRITE_TO_LOST_TERMINAL, tmp_path / "saved"],
        stdin=process_end,
        stdout=process_end,
        stderr=process_end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(process_end)
        assert b"ready" in os.read(terminal, 100)
        os.close(terminal)
        assert process.wait(timeout=10) == 0
    assert (tmp_path / "saved").exists()
