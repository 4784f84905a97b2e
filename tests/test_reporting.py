"""Progress of a stage: a bar on a terminal, plain lines elsewhere."""

import io
from contextlib import redirect_stderr

import pytest

from tfm import reporting
from tfm.reporting import Progress, say


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


def test_messages_are_lines_on_stderr(capsys):
    say("one")
    say("two")
    assert capsys.readouterr() == ("", "one\ntwo\n")


def test_messages_are_printed_whatever_variables_a_shell_has_inherited(capsys, monkeypatch):
    for name in "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR":
        monkeypatch.setenv(name, "1")
    say("one")
    with Progress("work", total=1, unit="pairs") as bar:
        bar.update()
    assert capsys.readouterr() == ("", "one\n")


def test_without_a_terminal_lines_are_printed_at_intervals(capsys, clock):
    with Progress("work", total=2_000, unit="pairs") as bar:
        for _ in range(20):
            clock.now += 5
            bar.update(100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "work 300/2,000 pairs"
    assert len(lines) == 6


def test_without_a_terminal_quick_work_prints_nothing(capsys, clock):
    with Progress("work", total=None, unit="pairs") as bar:
        bar.update(100)
    assert capsys.readouterr() == ("", "")


def test_without_a_total_only_the_count_is_printed(capsys, clock):
    with Progress("work", total=None, unit="pairs") as bar:
        clock.now += 60
        bar.update(1_234)
    assert capsys.readouterr().err == "work 1,234 pairs\n"


def test_figures_are_shown_until_newer_ones_replace_them(capsys, clock):
    with Progress("train", total=None, unit="steps", initial=7) as bar:
        bar.update(figures="loss 3.0")
        clock.now += 60
        bar.update()
    assert capsys.readouterr().err == "train 9 steps · loss 3.0\n"


def test_a_terminal_shows_a_bar_and_clears_it_at_the_end():
    with redirect_stderr(Terminal()) as terminal, Progress("work", total=2, unit="pairs") as bar:
        bar.update(1, figures="loss 3.0")
        say("a line")
        bar.update(1)
    shown = terminal.getvalue()
    assert "work" in shown
    assert "a line\n" in shown
    assert shown.endswith("\r")


def test_a_bar_is_closed_when_the_work_fails():
    def fail():
        with Progress("work", total=2, unit="pairs") as bar:
            bar.update(1 // 0)

    with redirect_stderr(Terminal()) as terminal, pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.getvalue().endswith("\r")


@pytest.mark.parametrize("tty", [True, False])
def test_finished_units_are_counted(tty):
    stream = Terminal() if tty else io.StringIO()
    with redirect_stderr(stream), Progress("work", total=10, unit="pairs", initial=3) as bar:
        bar.update()
        bar.update(2)
        assert bar.done == 6
