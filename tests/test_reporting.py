"""Messages, and the progress of a stage: a bar on a terminal, plain lines elsewhere."""

import io
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr

import pytest

from tfm import reporting
from tfm.errors import DETAIL
from tfm.reporting import Progress, format_duration, format_number, printable, say, shown_on


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(reporting.time, "monotonic", lambda: Clock.now)
    return Clock


def test_messages_are_printed_whatever_variables_a_shell_has_inherited(capsys, monkeypatch):
    for name in "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR":
        monkeypatch.setenv(name, "1")
    say("one")
    with Progress("work", total=1, unit="pairs") as bar:
        bar.update()
    assert capsys.readouterr() == ("", "one\n")


def test_control_characters_of_a_message_are_escaped(capsys):
    say('line 1 ("\x1b[31mred\t\r\nnext \u202e") is schön · “so” 中文')
    assert capsys.readouterr().err == (
        'line 1 ("\\x1b[31mred\\t\\r\\nnext \\u202e") is schön · “so” 中文\n'
    )


def test_the_details_of_a_message_keep_their_lines():
    assert printable(f"two{DETAIL}one\x07{DETAIL}two") == "two\n  one\\x07\n  two"


def test_on_a_terminal_lines_end_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    message = f"no such option --metric-commands: did you{DETAIL}mean --metric-command?"
    shown = shown_on(Terminal(), message)
    assert shown.split() == message.split()
    assert max(map(len, shown.splitlines())) <= 24
    assert shown_on(io.StringIO(), message) == message


_WRITE_TO_STDERR = """
import sys, warnings
from tfm.reporting import Progress, best_effort, say
sys.stderr = best_effort(sys.stderr)
with Progress("work", total=2, unit="pairs") as bar:
    for number in range(3):
        say(f"message {number}")
        bar.update()
warnings.warn("one more")
print("data")
sys.exit(3)
"""


def unwritable(ending):
    """Return the descriptor of a full disk, a closed pipe or a lost terminal."""
    if ending == "full disk":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe() if ending == "closed pipe" else pty.openpty()
    os.close(reader)
    return writer


@pytest.mark.parametrize("ending", ["full disk", "closed pipe", "lost terminal"])
def test_a_process_whose_messages_cannot_be_written_does_its_work(ending):
    writer = unwritable(ending)
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_TO_STDERR],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stdout) == (3, "data\n")


def test_messages_that_can_be_written_are_written_in_order_with_those_of_others():
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_TO_STDERR], capture_output=True, text=True, check=False
    )
    *said, warning = done.stderr.splitlines()[:4]  # Python 3.13 shows the line of code, too
    assert said == ["message 0", "message 1", "message 2"]
    assert warning.endswith("UserWarning: one more")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14159, "3.14"), (12345.678, "12,345.68"), (2.688e43, "2.7e+43"), (-1.5e30, "-1.5e+30"),
     (float("nan"), "nan"), (float("inf"), "inf")],
)  # fmt: skip
def test_large_figures_have_an_exponent(value, text):
    assert format_number(value, decimals=2) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0123, "0.012 s"), (3.14, "3.1 s"), (119, "119 s"), (120, "2 min"),
     (4000, "67 min"), (7200, "2 h"), (100_000, "28 h"), (172_800, "2 days"), (1e9, "11,574 days"),
     (float("inf"), "inf days")],
)  # fmt: skip
def test_durations_are_in_the_largest_unit_of_which_there_are_two(seconds, text):
    assert format_duration(seconds) == text


def test_without_a_terminal_lines_are_printed_at_intervals(capsys, clock):
    with Progress("work", total=2_000, unit="pairs") as bar:
        for _ in range(20):
            clock.now += 5
            bar.update(100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work 300/2,000 pairs"
    assert len(lines) == 6


def test_figures_are_shown_until_newer_ones_replace_them(capsys, clock):
    with Progress("train", total=None, unit="steps", initial=7) as bar:
        bar.update(statistics=["loss 3.0", "epoch 2"])
        clock.now += 60
        bar.update()
    assert capsys.readouterr().err == "train 9 steps · loss 3.0 · epoch 2\n"


def test_the_total_of_work_that_ends_at_a_deadline_is_estimated(capsys, clock):
    with Progress("train", total=2_000, unit="steps", initial=400, deadline=100.0) as bar:
        clock.now += 20
        bar.update(113)
        clock.now += 40
        bar.update(226)
    assert capsys.readouterr().err.splitlines() == ["train 513/~960 steps", "train 739/~960 steps"]


def test_a_terminal_shows_a_bar_and_clears_it_at_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with (
        redirect_stderr(Terminal()) as terminal,
        Progress("work {a}", total=2, unit="pairs", start="reading") as bar,
    ):
        bar.update(1, statistics=["loss 3.0"])
        say("a line")
        bar.update(1)
    shown = terminal.getvalue()
    assert "work {a} 0/2 pairs · reading" in shown
    assert "a line\n" in shown
    assert shown.endswith("\r")


def test_a_terminal_that_cannot_go_back_shows_lines(monkeypatch, clock):
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(Terminal()) as terminal, Progress("work", total=2, unit="pairs") as bar:
        clock.now += 20
        bar.update(1)
    assert terminal.getvalue() == "work 1/2 pairs\n"
