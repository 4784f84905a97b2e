"""One writer to a folder: the second is refused, a dead one's lock is free."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from tfm.errors import TfmError
from tfm.storage import lock
from tfm.storage.lock import FolderLock, LockedFolderError

# Takes the lock, says so, and waits; with a child of its own if asked to.
HOLDER = """
import os, pathlib, sys, time
from tfm.storage.lock import FolderLock

with FolderLock(pathlib.Path(sys.argv[1])):
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
    return json.loads((folder / ".lock").read_text())


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path, holder):
    process = holder()
    with pytest.raises(LockedFolderError) as caught, FolderLock(tmp_path):
        pass
    assert isinstance(caught.value, TfmError)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} is being written to by process {process.pid} on ")
    assert f"{socket.gethostname()}, since 20" in message
    assert "\n" not in message


def test_one_process_is_refused_a_second_lock_too(tmp_path):
    with (
        FolderLock(tmp_path),
        pytest.raises(LockedFolderError, match=str(os.getpid())),
        FolderLock(tmp_path),
    ):
        pass
    with FolderLock(tmp_path):
        pass


def test_a_lock_is_free_when_it_is_closed_and_its_note_says_nothing_more(tmp_path):
    with FolderLock(tmp_path / "run"):
        assert note(tmp_path / "run")["pid"] == os.getpid()
    assert (tmp_path / "run" / ".lock").read_bytes() == b""
    with FolderLock(tmp_path / "run"):
        pass


@pytest.mark.parametrize("way", ["alone", "child", "program"])
def test_the_lock_of_a_killed_process_is_free_though_its_children_live(tmp_path, holder, way):
    process = holder(way)
    with pytest.raises(LockedFolderError), FolderLock(tmp_path):
        pass
    process.kill()
    process.wait()
    with FolderLock(tmp_path):
        assert note(tmp_path)["pid"] == os.getpid()


def test_a_child_that_ends_leaves_its_parent_the_lock(tmp_path, holder):
    process = holder("past child")
    with pytest.raises(LockedFolderError, match=f"process {process.pid} on"), FolderLock(tmp_path):
        pass


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="Too many levels"), FolderLock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 9_999, '{"pid": 1}', "\0\0"])
def test_a_lock_with_a_note_that_is_none_still_refuses(tmp_path, content):
    with FolderLock(tmp_path):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(LockedFolderError, match="by another process: "), FolderLock(tmp_path):
            pass


def test_a_lock_holds_though_there_is_no_room_for_its_note(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.os, "pwrite", fail)
    with FolderLock(tmp_path), pytest.raises(LockedFolderError), FolderLock(tmp_path):
        pass


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that knows no locks."""

    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", fail)


def write_note(folder, **changes):
    content = {"host": socket.gethostname(), "pid": os.getppid(), "since": "2026-01-01", **changes}
    (folder / ".lock").write_text(json.dumps(content))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_process_that_runs_here_is_believed(tmp_path):
    write_note(tmp_path)
    with pytest.raises(LockedFolderError, match="since 2026-01-01: wait"), FolderLock(tmp_path):
        pass


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("pid", ["dead", 0, -1, 10**30, "7", None])
def test_without_locks_the_note_of_a_process_that_is_no_more_is_written_over(tmp_path, pid):
    if pid == "dead":
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        pid = process.pid
    write_note(tmp_path, pid=pid)
    with FolderLock(tmp_path):
        assert note(tmp_path)["pid"] == os.getpid()
    assert (tmp_path / ".lock").read_bytes() == b""


@pytest.mark.usefixtures("no_locks")
def test_without_locks_another_machine_is_believed_until_the_note_is_removed(tmp_path):
    write_note(tmp_path, host="elsewhere")
    with (
        pytest.raises(LockedFolderError, match=r"no longer runs there, remove .*\.lock"),
        FolderLock(tmp_path),
    ):
        pass
    (tmp_path / ".lock").unlink()
    with FolderLock(tmp_path):
        assert note(tmp_path)["host"] == socket.gethostname()


def test_other_failures_to_lock_are_said_as_they_are(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"), FolderLock(tmp_path):
        pass
