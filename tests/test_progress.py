"""The figures of several steps as one record."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from contextlib import redirect_stderr

import pytest

from tfm.reporting import Progress
from tfm.training.progress import StepReport, figures_line, metrics_record


def report(step, **changes):
    figures = {
        "epoch": 1,
        "loss": 2.0,
        "nll": 1.0,
        "num_tokens": 100,
        "flops": 1000,
        "gradient_norm": 0.5,
        "learning_rate": 1e-3,
        "seconds": 2.0,
    }
    return StepReport(step=step, **figures | changes)


def test_losses_are_means_over_tokens_and_rates_are_per_second():
    first = report(1, loss=1.0, num_tokens=300, seconds=1.0, flops=5000)
    second = report(2, loss=5.0, num_tokens=100, seconds=3.0, flops=3000)
    record = metrics_record([first, second])
    assert record["loss"] == pytest.approx(2.0)
    assert record["target_tokens_per_second"] == pytest.approx(100.0)
    assert record["flops_per_step"] == pytest.approx(4000.0)
    assert record["flops_per_second"] == pytest.approx(2000.0)
    assert record["step"] == 2


def test_the_bar_of_training_shows_loss_speed_and_time_left_on_80_columns():
    user_end, process_end = pty.openpty()
    fcntl.ioctl(process_end, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    figures = figures_line([report(1, num_tokens=250_000, loss=12.345)])
    with os.fdopen(process_end, "w", encoding="utf-8") as terminal, redirect_stderr(terminal):
        with Progress("train", total=100_000, unit="steps", initial=54_320) as bar:
            time.sleep(0.2)  # the bar is not drawn more often
            bar.update(1, figures=figures)
        output = b""
        while not re.search(rb"54321.*tok/s ", output):  # a terminal may deliver it in pieces
            assert select.select([user_end], [], [], 10)[0], output
            output += os.read(user_end, 10_000)
    os.close(user_end)
    bars = re.findall(r"train: [^\r]*", output.decode(errors="replace"))
    assert max(map(len, bars)) <= 80
    assert re.search(r"54321/100000 \[\d:\d\d:\d\d left, loss 12\.345 · 125,000 tok/s ", bars[-1])


def test_a_loss_too_large_for_a_perplexity_can_be_shown():
    assert "ppl" in figures_line([report(1, nll=5000.0)])
