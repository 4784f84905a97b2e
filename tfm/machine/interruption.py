"""Ending processes: signals that ask a stage to stop where it is safe, and reports of failures.

One of several processes reports its failure to its launcher, which shows it to the user. It writes
to the file that torch's launcher has named, in the format of
`torch.distributed.elastic.multiprocessing.errors.record`, but without loading torch.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tfm.errors import InterruptedRunError
from tfm.machine.world import current_world, torchrun_restarts

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_RESTART = "TFM_RESTART"  # set by tfm's launcher: its number and cause, in words
RESUME = "run the same command again to resume from the last checkpoint"


def has_launcher() -> bool:
    """Return whether torchrun or tfm's own launcher started this process."""
    return bool(os.environ.get(_ERROR_FILE))


def report_failure(
    message: str,
    *,
    exit_code: int = 1,
    is_consequence: bool = False,
    recurs: bool = False,
    trace: str = "",
) -> bool:
    """Report how this process ends to its launcher; only the first report counts.

    Return whether the launcher will print the message; if not, the caller has to. A failure is a
    consequence if another process has failed before, and recurs if a restart cannot help; only a
    bug has a trace. A process that has
    saved and stopped for a signal reports an empty message.
    """
    if not has_launcher():
        return False
    facts = {
        "timestamp": str(int(time.time())),
        "exit_code": exit_code,
        "is_consequence": is_consequence,
        "recurs": recurs,
        **({"py_callstack": trace} if trace else {}),  # torchrun prints it even if it is empty
    }
    path = Path(os.environ[_ERROR_FILE])
    partial = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    try:
        if not path.exists():
            # This process may be killed at any moment, and must not leave half a file.
            text = json.dumps({"message": {"message": message, "extraInfo": facts}})
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError:  # the launcher has ended, or the disk is full
        return False
    return True


def failures_in(log_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return messages and facts that the processes of a launcher have reported.

    Consequences of other failures come last.
    """
    files = (json.loads(path.read_bytes()) for path in log_dir.rglob("error.json"))
    return sorted(map(report_in, files), key=lambda each: each[1].get("is_consequence", True))


def report_in(error_file: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the message and the facts that a process has reported; empty without a report."""
    report = error_file["message"]
    if isinstance(report, dict):
        return report["message"], report["extraInfo"]
    return "", {}


def announce_restart(number: int, limit: int, cause: str) -> None:
    """Let the processes that this launcher starts next know why; the first start has no number."""
    os.environ[_RESTART] = f"restart {number} of {limit}: {cause.removesuffix(f'; {RESUME}')}"


def cause_of_restart() -> str | None:
    """Return why tfm's launcher has restarted the processes, in words; None if it has not."""
    return os.environ.get(_RESTART)


def prevent_restart() -> None:
    """Make torchrun end instead of restarting this process: the failure would recur."""
    count, limit = torchrun_restarts()
    if has_launcher() and count < limit:
        os.kill(os.getppid(), signal.SIGTERM)


def end_process(message: str, *, exit_code: int = 1, is_consequence: bool = False) -> NoReturn:
    """End this process at once, even if its main thread is stuck.

    Without a launcher, the message is printed only if the failure is no consequence of another.
    """
    is_reported = report_failure(message, exit_code=exit_code, is_consequence=is_consequence)
    if not is_reported and not is_consequence:
        # The main thread may hold the locks of Python's streams forever.
        with contextlib.suppress(OSError):
            os.write(2, f"tfm: {message}\n".encode(errors="replace"))
    os._exit(exit_code)


# A process that was asked to stop is killed if it has not saved and ended within this time.
SAVING_SECONDS = 120
_POLL_SECONDS = 1.0
UNSAVED = "stopped without saving; the same command resumes from the last checkpoint, if any"


class StopRequests:
    """A context in which signals to stop are only recorded; a second Ctrl-C stops at once.

    The signals are Ctrl-C, SIGTERM, SIGUSR1 (batch systems send it before they end a job) and
    SIGHUP (a closed terminal). A signal that was ignored before, as under nohup, stays ignored.

    Python runs signal handlers only between two operations of the main thread, which may be long.
    With a notice, a thread answers at once: rank 0 prints the notice after the first signal, and a
    second Ctrl-C ends the process. Without one, a second Ctrl-C raises KeyboardInterrupt.

    Outside of the main thread, where Python handles no signals, the context does nothing.

    Args:
        notice: One line that says what happens after the first signal; None for no thread.

    Attributes:
        received: The first signal that came; None if there was none.
    """

    EXIT_CODES: Mapping[int, int] = {
        signal.SIGINT: 130,
        signal.SIGTERM: 0,
        # Windows has neither of these.
        **{getattr(signal, name): 0 for name in ("SIGUSR1", "SIGHUP") if hasattr(signal, name)},
    }

    def __init__(self, notice: str | None = None) -> None:
        self.received: int | None = None
        self._notice = notice
        self._previous: dict[int, Any] = {}
        self._wakeup: socket.socket | None = None

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in self.EXIT_CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record)
        if self._notice is not None:
            reader, self._wakeup = socket.socketpair()
            self._wakeup.setblocking(False)
            signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._answer, args=(reader, self._notice), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stops_for_others = self.received is None and kind is InterruptedRunError
        # The launcher may send the same signal again, which must not kill a process as it ends.
        is_ending = has_launcher() and (self.received is not None or stops_for_others)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            self._wakeup.close()  # ends the thread
        world = current_world()
        if is_ending and stops_for_others and world.spans_machines and world.local_rank == 0:
            # The signal came to another machine, for which the launcher of this one would wait.
            os.kill(os.getppid(), signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        """The exit code for the signal that came; None if there was none."""
        return None if self.received is None else self.EXIT_CODES[self.received]

    def _record(self, number: int, _: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            _replace_lost_terminal()
        if self.received is not None and number == signal.SIGINT and self._notice is None:
            raise KeyboardInterrupt
        self.received = self.received or number

    def _answer(self, reader: socket.socket, notice: str) -> None:
        """Answer signals as soon as they come: Python writes their numbers to a socket."""
        first = None
        while signals := reader.recv(1):
            number = signals[0]
            if number not in self._previous:
                continue
            # torch's launcher forwards the first Ctrl-C as SIGINT, and the second one as SIGTERM.
            second_ctrl_c = {signal.SIGINT}
            if first == signal.SIGINT and has_launcher():
                second_ctrl_c.add(signal.SIGTERM)
            if first is not None and number in second_ctrl_c:
                end_process(UNSAVED, exit_code=self.EXIT_CODES[signal.SIGINT])
            if first is None and current_world().is_first:
                # Not through Python's streams, whose locks the main thread may hold.
                start = "\n" if os.isatty(2) else ""  # below a progress bar
                with contextlib.suppress(OSError):  # a closed terminal
                    os.write(2, f"{start}{notice}\n".encode())
            first = first or number
        reader.close()


def stop_with_launcher() -> None:
    """Stop this process as if by SIGTERM if its launcher dies: nothing else would end it."""
    if has_launcher():
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_SECONDS)
    if current_world().spans_machines and torchrun_restarts()[1]:
        # The launchers of other machines restart their processes, which would save and stop, too.
        end_process("the launcher of this process has ended", is_consequence=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _replace_lost_terminal() -> None:
    """Redirect output to /dev/null if its terminal is closed: writing there fails."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
