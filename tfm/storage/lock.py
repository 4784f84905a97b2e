"""A folder that one process at a time may write to."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from tfm.errors import TfmError
from tfm.storage.files import make_directory

_MAX_NOTE_BYTES = 1_000
# Errors of flock on file systems that do not support it.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class LockedFolderError(TfmError):
    """A folder that another process is writing to."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from locking a folder, which is made if need be, during the block.

    The system releases the lock when the process ends, however it ends; forked processes do not
    hold it. Where the file system does not support locks, a marker file takes their place: it is
    void once its process has ended on this machine, but another machine's must be removed by hand.

    Raises:
        LockedFolderError: Another process holds the lock.
        OSError: The folder cannot be written to.
    """
    make_directory(folder)
    note, marker = folder / ".lock", folder / ".lock.marker"
    remedy = ""
    lock: BaseFileLock = FileLock(note, blocking=False, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            remedy = f"; if it no longer runs, remove {marker}"
            lock = SoftFileLock(marker, timeout=1)  # the second try may find the holder dead
            lock.acquire()
    except Timeout:
        raise LockedFolderError(
            f"{folder} is being written to by {_holder(note)}: wait for it, stop it, or use "
            f"another folder{remedy}"
        ) from None
    since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    try:
        with contextlib.suppress(OSError):  # the lock holds without a note, on a full disk
            note.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}")
        yield
    finally:
        if lock.is_locked:  # False in a forked process
            with contextlib.suppress(OSError):
                os.truncate(note, 0)  # not removed: another process may be about to lock it
        lock.release()


def _holder(note: Path) -> str:
    """The process that the note names, if it is whole."""
    with contextlib.suppress(OSError), note.open("rb") as file:
        text = file.read(_MAX_NOTE_BYTES).decode(errors="replace")
        if text.startswith("process ") and text.isprintable():
            return text
    return "another process"
