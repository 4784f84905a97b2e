"""The entry point: runs a command and turns errors into one line and an exit code."""

import io
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import typer
from typing_extensions import override

import tfm.cli.commands  # noqa: F401 - it adds the commands
from tfm.cli.app import app, explain_mistake
from tfm.errors import InterruptedRunError, LostPeersError, TfmError, UsageError, explain_os_error
from tfm.machine.interruption import prevent_restart, report_failure, stop_with_launcher
from tfm.machine.world import current_world
from tfm.reporting import best_effort, shown_on

_COMPLETION = "_TFM_COMPLETE"  # set by the script of --install-completion
_INTERRUPTED = 130  # typer's exit code after Ctrl-C


def main() -> None:
    """Run the command line; print a user's mistake as one line on stderr; exit with its code."""
    _replace_closed_streams()
    sys.stderr = best_effort(sys.stderr)  # messages never end a run
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Independent of the locale. Names of files are printed in their own bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    # Else torch prints many lines about each connection to a process that has ended.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    stop_with_launcher()
    code = 1
    try:
        try:
            code = app(standalone_mode=False, prog_name="tfm") or 0
        finally:
            sys.stdout.flush()
        if code == _INTERRUPTED:
            _report_failure("stopped", exit_code=code)
    except typer.TyperException as error:
        code = _report_error(UsageError(explain_mistake(error)))
    except InterruptedRunError as stop:
        code = _report_stop(stop)
    except TfmError as error:
        code = _report_error(error)
    except BrokenPipeError:
        _drop_output()  # the reader closed the pipe: end quietly
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _report_failure(f"{where}{explain_os_error(error)}")
        _drop_output()
    except Exception as error:
        name = f"{type(error).__name__}: {error}".removesuffix(": ")
        if not report_failure(name, trace=traceback.format_exc()):
            raise
    _exit_process(code)


def _exit_process(code: int) -> NoReturn:
    """End this process with an exit code.

    A process of several, or an interrupted process, skips Python's shutdown, which would abort and
    lose the exit code if a thread still waits for another process or runs library code.
    """
    if current_world().size > 1 or code == _INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _report_failure(
    message: str, *, exit_code: int = 1, is_consequence: bool = False, recurs: bool = False
) -> int:
    """Report a failure to the launcher, which prints it once, or to the user; return the code."""
    if not report_failure(
        message, exit_code=exit_code, is_consequence=is_consequence, recurs=recurs
    ):
        _print_error(f"tfm: {message}")
    return exit_code


def _report_error(error: TfmError) -> int:
    """Report a user's mistake or a failure of a run, and return the exit code."""
    is_consequence = isinstance(error, LostPeersError)
    code = _report_failure(
        str(error),
        exit_code=error.exit_code,
        is_consequence=is_consequence,
        recurs=not error.restart_helps,
    )
    if not error.restart_helps:
        prevent_restart()
    return code


def _report_stop(stop: InterruptedRunError) -> int:
    """Print where a run has stopped, and return the exit code."""
    if current_world().is_first:
        _print_error(f"tfm: {stop}")
    # A launcher takes any other code for a failure and kills the other processes while they save.
    return 0 if report_failure("", exit_code=stop.exit_code) else stop.exit_code


def _replace_closed_streams() -> None:
    """Replace streams that the caller has closed, so that no other file gets their numbers.

    A closed standard input stays None, which tells commands that there is none.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        os.open(os.devnull, os.O_WRONLY)  # for the programs that this one starts
        sys.stdout = _ClosedStdout()
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


class _ClosedStdout(io.TextIOBase):
    """Standard output that the caller has closed: commands that print nothing succeed."""

    @override
    def write(self, _: str) -> int:
        raise TfmError(
            "standard output is closed, so the output is lost: leave out >&-, or redirect it to "
            "a file"
        )


def _drop_output() -> None:
    """Redirect stdout to /dev/null, so that Python does not fail again when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_error(message: str) -> None:
    if _COMPLETION not in os.environ:  # a shell completes a command that is not whole yet
        sys.stderr.write(shown_on(sys.stderr, message) + "\n")
