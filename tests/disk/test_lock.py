"""A folder has one writer: a second one is refused; the lock of a dead process is free."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfm.disk.lock import LockedFolderError, lock_folder
from tfm.errors import TfmError

# Acquires the lock, prints a process id, and waits; optionally starts a child process first.
HOLDER = """
import os, pathlib, sys, time
from tfm.disk.lock import lock_folder

if "NO_LOCKS" in os.environ:
    import fcntl

    def fail(*_):
        raise OSError(int(os.environ["NO_LOCKS"]), "no locks")

    fcntl.flock = fail

with lock_folder(pathlib.Path(sys.argv[1])):
    if sys.argv[2] == "child" and os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    if sys.argv[2] == "program":
        import subprocess
        print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    if sys.argv[2] == "ended child":
        child = os.fork()
        if child == 0:
            sys.exit()
        os.waitpid(child, 0)
    if sys.argv[2] in ("alone", "ended child"):
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lock; it and its children are killed after the test."""
    processes, children = [], []

    def start(mode="alone"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        children.append(int(process.stdout.readline()))
        return process

    yield start
    for process, child in zip(processes, children, strict=True):
        process.kill()
        process.wait()
        process.stdout.close()
        if child != process.pid:
            os.kill(child, signal.SIGKILL)


def note(folder):
    return (folder / ".lock").read_text()


def assert_refused(folder, match=None):
    with pytest.raises(LockedFolderError, match=match), lock_folder(folder):
        pass


def assert_free(folder):
    with lock_folder(folder):
        assert note(folder).startswith(f"process {os.getpid()} on {socket.gethostname()}")
    assert note(folder) == ""


def fail_flock(number, set_attribute):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    set_attribute(fcntl, "flock", fail)


def test_a_second_process_is_refused_and_the_first_is_named(tmp_path, holder):
    process = holder()
    with pytest.raises(LockedFolderError) as caught, lock_folder(tmp_path):
        pass
    assert isinstance(caught.value, TfmError)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} is being written to by process {process.pid} on ")
    assert f"{socket.gethostname()}, since 20" in message
    assert "\n" not in message


def test_a_process_is_refused_a_second_lock_and_a_released_one_is_free(tmp_path):
    with lock_folder(tmp_path):
        assert_refused(tmp_path, str(os.getpid()))
    assert_free(tmp_path)
    assert_free(tmp_path)


@pytest.mark.parametrize("mode", ["alone", "child", "program"])
def test_the_lock_of_a_killed_process_is_free_though_its_children_run(tmp_path, holder, mode):
    process = holder(mode)
    assert_refused(tmp_path)
    process.kill()
    process.wait()
    assert_free(tmp_path)


def test_a_child_that_ends_does_not_release_the_lock_of_its_parent(tmp_path, holder):
    assert_refused(tmp_path, f"process {holder('ended child').pid} on")


def test_a_lock_holds_though_its_note_cannot_be_written(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with lock_folder(tmp_path):
        assert_refused(tmp_path)


@pytest.fixture
def no_locks(monkeypatch):
    """Simulate a file system without locks, for this process and its children."""
    fail_flock(errno.ENOLCK, monkeypatch.setattr)
    monkeypatch.setenv("NO_LOCKS", str(errno.ENOLCK))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_marker_of_a_process_here_counts_until_it_ends(tmp_path, holder):
    process = holder()
    assert_refused(tmp_path, f"process {process.pid} on .*, remove .*marker")
    process.kill()
    process.wait()
    assert_free(tmp_path)
    assert_free(tmp_path)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_marker_of_another_machine_counts_until_it_is_removed(tmp_path):
    (tmp_path / ".lock.marker").write_text(f"{os.getpid()}\nelsewhere\n")
    assert_refused(tmp_path, r"no longer runs, remove .*\.lock\.marker")
    (tmp_path / ".lock.marker").unlink()
    assert_free(tmp_path)


def test_other_errors_of_the_lock_are_raised_unchanged(tmp_path, monkeypatch):
    fail_flock(errno.EIO, monkeypatch.setattr)
    with pytest.raises(OSError, match="Input/output error"), lock_folder(tmp_path):
        pass
