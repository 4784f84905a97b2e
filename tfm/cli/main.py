"""The entry point: runs a command and turns what goes wrong into one line and an exit code."""

import os
import sys
from pathlib import Path

import typer

from tfm.cli.commands import app
from tfm.errors import TfmError, UsageError

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and an exit code."""
    _replace_closed_streams()
    code = 1
    try:
        try:
            code = app(standalone_mode=False, prog_name="tfm") or 0
        finally:
            sys.stdout.flush()
        if code == _INTERRUPTED:
            _say("tfm: stopped")
    except typer.TyperException as error:
        _say(f"tfm: {_wrong_usage(error)}")
        code = UsageError.exit_code
    except TfmError as error:
        _say(f"tfm: {error}")
        code = error.exit_code
    except BrokenPipeError:
        _drop_output()  # whoever read it has had enough: be quiet
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"tfm: {where}{error.strerror or error}")
        _drop_output()
    sys.exit(code)


def _wrong_usage(error: typer.TyperException) -> str:
    """What typer has against the command line, in one line."""
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    text = error.format_message().replace("Value error, ", "")  # pydantic's words to programmers
    return " ".join(text.split()).removesuffix(".") + hint


def _replace_closed_streams() -> None:
    """Let a standard stream that the caller has closed be as good as /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Keep Python from trying, and complaining, again when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    typer.echo(message, err=True)
