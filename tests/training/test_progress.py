"""The statistics of several steps as one record."""

import fcntl
import math
import os
import pty
import re
import select
import struct
import termios
from contextlib import redirect_stderr

import pytest

from tfm import reporting
from tfm.reporting import Progress
from tfm.training.progress import StepReport, metrics_record, progress_statistics


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
    first = report(1, loss=1.0, nll=0.5, num_tokens=300, seconds=1.0, flops=5000)
    second = report(2, loss=5.0, nll=2.5, num_tokens=100, seconds=3.0, flops=3000)
    record = metrics_record([first, second])
    assert record["smoothed_loss"] == pytest.approx(2.0)
    assert record["loss"] == pytest.approx(1.0)
    assert record["perplexity"] == pytest.approx(math.exp(1.0))
    assert record["target_tokens_per_second"] == pytest.approx(100.0)
    assert record["flops_per_step"] == pytest.approx(4000.0)
    assert record["flops_per_second"] == pytest.approx(2000.0)
    assert record["step"] == 2
    assert record["data_waiting_share"] == 0


def test_speed_includes_waiting_for_data_and_its_share_is_known():
    record = metrics_record([report(1, seconds=1.0), report(2, seconds=3.0, waiting_seconds=1.0)])
    assert record["target_tokens_per_second"] == pytest.approx(50.0)
    assert record["data_waiting_share"] == pytest.approx(0.25)


FIELDS = (
    r"train 54,321/100,000",
    r"loss 11\.724",
    r"13 h left",
    r"125,000 tok/s",
    r"epoch 12",
    r"ppl 123,456\.00",
    r"lr 1\.0e-03",
    r"data wait 25%",
    r"1 steps/s",
)


@pytest.mark.parametrize(
    ("columns", "num_fields", "has_bar"),
    [(40, 2, False), (60, 3, False), (80, 4, True), (100, 5, True), (120, 6, True),
     (160, 9, True)],
)  # fmt: skip
def test_the_bar_of_training_shows_whole_figures_that_fit(
    monkeypatch, columns, num_fields, has_bar
):
    monkeypatch.setenv("TERM", "xterm")
    seconds = iter((0.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(reporting.time, "monotonic", lambda: next(seconds))
    user_end, process_end = pty.openpty()
    fcntl.ioctl(process_end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    newest = report(
        1, waiting_seconds=0.5, epoch=12, num_tokens=250_000, loss=12.345, nll=math.log(123_456)
    )
    with os.fdopen(process_end, "w", encoding="utf-8") as terminal, redirect_stderr(terminal):
        with Progress("train", total=100_000, unit="steps", initial=54_320) as bar:
            bar.update(1, statistics=progress_statistics([newest]))
        output = b""
        while not re.search(rb"54,321.*\r", output):
            assert select.select([user_end], [], [], 10)[0], output  # it may come in pieces
            output += os.read(user_end, 10_000)
    os.close(user_end)
    [drawn] = re.findall(r"train 54,321[^\r]*", output.decode())
    assert len(drawn) <= columns
    fields = drawn.rstrip().split(" · ")
    if has_bar:
        assert re.fullmatch(r"54% \|███+.{4,}\|", fields.pop())
    assert len(fields) == num_fields
    for field, pattern in zip(fields, FIELDS, strict=False):
        assert re.fullmatch(pattern, field)


def test_a_loss_too_large_for_a_perplexity_is_shown_with_an_exponent():
    shown = progress_statistics([report(1, loss=2e9, nll=2e9)])
    assert "loss 2.0e+09" in shown
    assert "ppl 2.7e+43" in shown


def test_the_loss_that_is_shown_is_the_logarithm_of_the_perplexity():
    shown = dict(
        each.split() for each in progress_statistics([report(1, loss=4.538, nll=4.0031)])[::3]
    )
    assert shown == {"loss": "4.003", "ppl": "54.77"}
