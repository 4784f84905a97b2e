"""Locks for folders that only one process at a time may write to."""

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from tfm.disk.files import is_running, make_directory
from tfm.errors import TfmError

_MAX_NOTE_BYTES = 1_000
_NOTE = re.compile(r"process ([0-9]{1,18}) on (.+), since .+")
# Errors of flock on file systems that do not support it.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class LockedFolderError(TfmError):
    """A folder that another process is writing to."""


@contextlib.contextmanager
def lock_folder(folder: Path, *, max_wait_seconds: float = 0) -> Iterator[None]:
    """Create a folder if necessary, and hold a lock on it during the block.

    The system releases the lock when the process ends, even if it is killed; forked processes do
    not hold it. On file systems without locks, a marker file is used instead: it is ignored once
    its process on this machine has ended, but the marker of another machine has to be removed by
    hand.
    """
    make_directory(folder)
    note, marker = folder / ".lock", folder / ".lock.marker"
    advice = ""
    lock: BaseFileLock = FileLock(note, timeout=max_wait_seconds, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            advice = f"; if it no longer runs, remove {marker}"
            # The second attempt, after less than a second, removes a dead marker.
            lock = SoftFileLock(marker, timeout=max(1, max_wait_seconds))
            lock.acquire()
    except Timeout:
        raise LockedFolderError(
            f"{folder} is being written to by {_holder(note)}: wait for it, stop it, or use "
            f"another folder{advice}"
        ) from None
    since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    try:
        with contextlib.suppress(OSError):  # on a full disk, the lock holds without a note
            note.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}")
        yield
    finally:
        if lock.is_locked:  # False in a forked process
            with contextlib.suppress(OSError):
                os.truncate(note, 0)  # not removed: another process may be about to lock it
        lock.release()


def is_locked(folder: Path) -> bool | None:
    """Return whether a process of this machine holds the lock of a folder.

    None if a process of another machine has left its note: it holds the lock, or was killed.
    """
    note = folder / ".lock"
    match = _NOTE.fullmatch(_holder(note))
    if match is None:
        return False
    if match[2] != socket.gethostname():
        return None
    if not is_running(int(match[1])):
        return False
    # The number may belong to a later process. Trying the lock does not disturb a process that is
    # about to acquire it: the note still names the older process.
    lock = FileLock(note, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except (Timeout, OSError):  # it is held, or this process may not try
        return True
    lock.release()
    return False


def _holder(note: Path) -> str:
    """Return the description of the lock's holder, if the note is intact."""
    with contextlib.suppress(OSError), note.open("rb") as file:
        text = file.read(_MAX_NOTE_BYTES).decode(errors="replace")
        if text.startswith("process ") and text.isprintable():
            return text
    return "another process"
