"""A folder that one process at a time may write to."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import weakref
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from tfm.errors import TfmError
from tfm.storage.files import is_running, make_directory, write_text

_NAME = ".lock"
_MAX_NOTE_BYTES = 4_096
# What file systems say that know no locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class LockedFolderError(TfmError):
    """A folder that another process is writing to."""


class FolderLock:
    """While it is open, no other process gets a lock on the folder.

    The system lets go of it when the process ends, however it ends, so that what a killed process
    has locked is free. Processes that it forks do not keep it.

    Where a file system knows no locks, the note of who holds it decides: one of this machine holds
    it as long as its process runs, one of another, which cannot be asked, until it is removed.

    Args:
        folder: The folder, which is made if need be.

    Raises:
        LockedFolderError: On entering: another process has it.
        OSError: On entering: nothing can be written there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _NAME
        self._descriptor: int | None = None
        # Else a child would hold the lock for as long as it lives, whatever becomes of this one.
        close = weakref.WeakMethod(self._close)
        os.register_at_fork(after_in_child=lambda: (found := close()) and found())

    def __enter__(self) -> "FolderLock":
        make_directory(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o666)
        try:
            self._take()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            # The file stays: another process may be about to lock it.
            with contextlib.suppress(OSError):
                os.truncate(self._path, 0)
        self._close()

    def _take(self) -> None:
        assert self._descriptor is not None  # noqa: S101
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(self._note()) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._take_by_note()
            return
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only nobody knows whose
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _own_note().encode(), 0)

    def _take_by_note(self) -> None:
        note = self._note()
        if note and note["host"] != socket.gethostname():
            raise self._refusal(note, f"; if it no longer runs there, remove {self._path}")
        if note and note["pid"] != os.getpid() and is_running(note["pid"]):
            raise self._refusal(note)
        write_text(self._path, _own_note())

    def _note(self) -> dict[str, Any] | None:
        """Who has the lock, if there is a whole note of it."""
        try:
            with self._path.open("rb") as file:
                note = json.loads(file.read(_MAX_NOTE_BYTES))
            found = {name: note[name] for name in ("host", "pid", "since")}
            return found if isinstance(found["pid"], int) and found["pid"] > 0 else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _refusal(self, note: dict[str, Any] | None, remedy: str = "") -> LockedFolderError:
        who = "another process"
        if note:
            who = f"process {note['pid']} on {note['host']}, since {note['since']}"
        return LockedFolderError(
            f"{self._folder} is being written to by {who}: wait for it, stop it, or use another "
            f"folder{remedy}"
        )

    def _close(self) -> None:
        """Let go of the lock, or in a child of the parent's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _own_note() -> str:
    since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}) + "\n"
