"""One writer to a folder: the second is refused, a dead one's lock is free."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tfm.errors import TfmError
from tfm.storage.lock import LockedFolderError, lock_folder

# Takes the lock, says so, and waits; with a child of its own if asked to.
HOLDER = """
import os, pathlib, sys, time
from tfm.storage.lock import lock_folder

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
    if sys.argv[2] == "past child":
        child = os.fork()
        if child == 0:
            sys.exit()
        os.waitpid(child, 0)
    if sys.argv[2] in ("alone", "past child"):
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lock; it and its children end with the test."""
    started, children = [], []

    def start(way="alone"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path), way], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        children.append(int(process.stdout.readline()))
        return process

    yield start
    for process, child in zip(started, children, strict=True):
        process.kill()
        process.wait()
        process.stdout.close()
        if child != process.pid:
            os.kill(child, signal.SIGKILL)


def note(folder):
    return (folder / ".lock").read_text()


def fail_flock(number, set_attribute):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    set_attribute(fcntl, "flock", fail)


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path, holder):
    process = holder()
    with pytest.raises(LockedFolderError) as caught, lock_folder(tmp_path):
        pass
    assert isinstance(caught.value, TfmError)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} is being written to by process {process.pid} on ")
    assert f"{socket.gethostname()}, since 20" in message
    assert "\n" not in message


def test_one_process_is_refused_a_second_lock_too(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(LockedFolderError, match=str(os.getpid())),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_lock_is_free_when_it_is_closed_and_its_note_says_nothing_more(tmp_path):
    with lock_folder(tmp_path / "run"):
        assert note(tmp_path / "run").startswith(f"process {os.getpid()} on ")
    assert (tmp_path / "run" / ".lock").read_bytes() == b""
    with lock_folder(tmp_path / "run"):
        pass


@pytest.mark.parametrize("way", ["alone", "child", "program"])
def test_the_lock_of_a_killed_process_is_free_though_its_children_live(tmp_path, holder, way):
    process = holder(way)
    with pytest.raises(LockedFolderError), lock_folder(tmp_path):
        pass
    process.kill()
    process.wait()
    with lock_folder(tmp_path):
        assert note(tmp_path).startswith(f"process {os.getpid()} on ")


def test_a_child_that_ends_leaves_its_parent_the_lock(tmp_path, holder):
    process = holder("past child")
    with pytest.raises(LockedFolderError, match=f"process {process.pid} on"), lock_folder(tmp_path):
        pass


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="Too many levels"), lock_folder(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"x", b"process 1\n\x1b[2J", b"\0\0", b"\xff" * 9_999])
def test_a_lock_with_a_note_that_is_none_still_refuses(tmp_path, content):
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(LockedFolderError, match="by another process: "), lock_folder(tmp_path):
            pass


def test_a_lock_holds_though_there_is_no_room_for_its_note(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with lock_folder(tmp_path), pytest.raises(LockedFolderError), lock_folder(tmp_path):
        pass


@pytest.fixture(params=["ENOLCK", "ENOTSUP", "ENOSYS", "EINVAL"])
def no_locks(request, monkeypatch):
    """A file system that does not support locks, for this process and those that it starts."""
    fail_flock(getattr(errno, request.param), monkeypatch.setattr)
    monkeypatch.setenv("NO_LOCKS", str(getattr(errno, request.param)))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_process_that_runs_here_is_believed_until_it_ends(tmp_path, holder):
    process = holder()
    with (
        pytest.raises(LockedFolderError, match=f"process {process.pid} on .*, remove .*marker"),
        lock_folder(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    with lock_folder(tmp_path):
        assert note(tmp_path).startswith(f"process {os.getpid()} on ")
    with lock_folder(tmp_path):
        pass
    assert note(tmp_path) == ""


@pytest.mark.usefixtures("no_locks")
def test_without_locks_another_machine_is_believed_until_the_marker_is_removed(tmp_path):
    (tmp_path / ".lock.marker").write_text(f"{os.getpid()}\nelsewhere\n")
    with (
        pytest.raises(LockedFolderError, match=r"no longer runs, remove .*\.lock\.marker"),
        lock_folder(tmp_path),
    ):
        pass
    (tmp_path / ".lock.marker").unlink()
    with lock_folder(tmp_path):
        assert socket.gethostname() in note(tmp_path)


def test_other_failures_to_lock_are_said_as_they_are(tmp_path, monkeypatch):
    fail_flock(errno.EIO, monkeypatch.setattr)
    with pytest.raises(OSError, match="Input/output error"), lock_folder(tmp_path):
        pass
