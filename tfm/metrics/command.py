"""Metrics of other programs, which read texts and print a number for each."""

import contextlib
import math
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple, Self, cast

from tfm.errors import TfmError

_MAX_SILENCE = 600.0  # seconds without an answer: loading a large model takes minutes
_MAX_ENDING = 60.0  # seconds from the last number to the end of the program
_TICK = 1.0  # seconds between two calls of `waiting`
_GRACE = 0.2  # seconds to wait for a second number after the first text of a program
_MAX_ANSWERS = 10_000  # that wait to be read; a program that prints more waits, too
_MAX_QUOTED = 200  # characters of a program's output
# No thousands separators, decimal commas, NaN, infinity, or other of Python's forms, such as 1_000.
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_CONTRACT = (
    "it must print one number, such as 0.81, for each line of its input, and nothing else, on "
    "standard output"
)


class ScoredText(NamedTuple):
    """A translation with its source, which may be empty, and its reference."""

    source: str
    hypothesis: str
    reference: str


class MetricCommandError(TfmError):
    """A program that fails, is silent, or prints something else than a number for each line."""


class MetricCommand:
    """A program that scores texts: it reads a line of three columns, and prints a number.

    The columns are source, hypothesis and reference in UTF-8, separated by tabs; tabs and line
    breaks in a text become spaces. The program is started by the first call, and again after a
    failure, by the system's shell; it ends with the context, or with this object.

    Args:
        command: The program with its arguments, as in a shell.
        waiting: Is called about once a second with the number of answers, such as a heartbeat.
    """

    def __init__(self, command: str, *, waiting: Callable[[int], None] = lambda _: None) -> None:
        self.command = command
        self._waiting = waiting
        self._program: _Program | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def scores(self, texts: Sequence[ScoredText], *, is_last: bool = False) -> list[float]:
        """Return the number that the program prints for each text.

        Args:
            texts: The texts. All are sent before the first answer is awaited, but the first text of
                a program that gets more later is sent alone, which shows whether it prints several
                numbers for a text.
            is_last: Close the program's standard input after them: programs that answer when they
                have read everything can only be used so.
        """
        if not texts:
            return []
        is_first = self._program is None and not is_last
        found: list[float] = []
        try:
            if self._program is not None:
                self._check_no_more(self._program, seconds=0)
            program = self._program = self._program or _Program(self.command)
            for part in filter(None, [texts[:1], texts[1:]] if is_first else [texts]):
                sender = threading.Thread(target=program.send, args=(part, is_last), daemon=True)
                sender.start()
                for _ in part:
                    found.append(self._next_score(program, len(found), len(texts)))
                while sender.is_alive():  # a program that reads nothing may print without end
                    self._waiting(len(found))
                    self._check_no_more(program, seconds=0)
                    sender.join(_TICK)
                self._check_no_more(program, seconds=_GRACE if is_first else 0)
            if is_last:
                self._await_end(program, len(texts))
        except BaseException:
            self.close()
            raise
        if is_last:
            self.close()
        return found

    def close(self) -> None:
        """End the program, if it runs."""
        if self._program is not None:
            self._program.end()
        self._program = None

    def _next_score(self, program: "_Program", number: int, total: int) -> float:
        """Return the next number, after `number` numbers for `total` texts."""
        answered = f"{number:,} of {total:,} lines"
        for _ in range(math.ceil(_MAX_SILENCE / _TICK)):
            self._waiting(number)
            with contextlib.suppress(queue.Empty):
                answer = program.answers.get(timeout=_TICK)
                break
        else:
            raise self._failure(
                f"has scored {answered}, and printed nothing for {_MAX_SILENCE / 60:.0f} minutes: "
                "it must print each number at once (python -u, stdbuf -oL)"
            )
        if answer is None:
            advice = "" if program.has_failed() else f"; {_CONTRACT}"
            raise self._failure(f"ended after {answered}{program.reason()}{advice}")
        text = _decoded(answer)
        if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
            return value
        raise self._failure(f'printed "{text[:_MAX_QUOTED]}" for line {number + 1:,}: {_CONTRACT}')

    def _await_end(self, program: "_Program", total: int) -> None:
        """Wait until the program, which has got all texts, ends without printing anything else."""
        for _ in range(math.ceil(_MAX_ENDING / _TICK)):
            self._waiting(total)
            has_ended = program.has_ended()  # its children may keep its output open
            if self._check_no_more(program, seconds=_TICK) or has_ended:
                break
        if program.has_failed():
            raise self._failure(f"failed after its last number{program.reason()}: correct it")

    def _check_no_more(self, program: "_Program", *, seconds: float) -> bool:
        """Return whether the output has ended; raise MetricCommandError if there is more of it."""
        with contextlib.suppress(queue.Empty):
            while (answer := program.answers.get(timeout=seconds)) is not None:
                if text := _decoded(answer)[:_MAX_QUOTED]:
                    raise self._failure(
                        f'printed "{text}" besides a number for each line: {_CONTRACT}'
                    )
            program.answers.put(None)  # for the next call
            return True
        return False

    def _failure(self, what: str) -> MetricCommandError:
        return MetricCommandError(f"the metric command {self.command} {what}")


class _Program:
    """A running program, with threads that send and receive lines."""

    def __init__(self, command: str) -> None:
        self.answers: queue.Queue[bytes | None] = queue.Queue(_MAX_ANSWERS)  # None is the end
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(  # noqa: S602 - users type it
            command,
            shell=True,  # it may be a pipeline
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for tfm, which ends the program
        )
        self._stdin = cast("IO[bytes]", self._process.stdin)
        # The thread does not hold this object, so that it is freed when it is no longer used.
        arguments = cast("IO[bytes]", self._process.stdout), self.answers
        threading.Thread(target=_receive, args=arguments, daemon=True).start()

    def send(self, texts: Sequence[ScoredText], is_last: bool) -> None:
        """Send a line for each text, and the end of all texts."""
        # If the program no longer reads, awaiting its answers tells why.
        with contextlib.suppress(OSError, ValueError):
            for text in texts:
                columns = (_on_one_line(column).replace("\t", " ") for column in text)
                self._stdin.write("\t".join(columns).encode(errors="replace") + b"\n")
            self._stdin.flush()
            if is_last:
                self._stdin.close()

    def has_ended(self) -> bool:
        """Return whether the program has ended."""
        return self._process.poll() is not None

    def has_failed(self) -> bool:
        """Return whether the program, which has closed its output, ends with an error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=5) != 0
        return False

    def reason(self) -> str:
        """Return how the program, which has closed its output, ended, and its last words."""
        self.has_failed()
        code = self._process.returncode
        reason = "" if code is None else f" with exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{reason}: {last[-_MAX_QUOTED:]}" if last else reason

    def end(self) -> None:
        """Kill the program, with the programs that its shell has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        with contextlib.suppress(queue.Empty):  # so that the thread that receives can end
            while self.answers.get(timeout=_GRACE) is not None:
                pass
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._errors.close()


def _receive(output: IO[bytes], answers: "queue.Queue[bytes | None]") -> None:
    with output:
        for line in output:
            answers.put(line)
    answers.put(None)


def _decoded(answer: bytes) -> str:
    return answer.decode(errors="replace").strip()


def _on_one_line(text: str) -> str:
    return " ".join(text.splitlines())
