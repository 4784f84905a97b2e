"""The figures of several steps as one record."""

import pytest

from tfm.training.progress import MetricsWindow, StepReport


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
    window = MetricsWindow()
    window.add(report(1, loss=1.0, num_tokens=300, seconds=1.0, flops=5000))
    window.add(report(2, loss=5.0, num_tokens=100, seconds=3.0, flops=3000))
    record = window.record()
    assert record["loss"] == pytest.approx(2.0)
    assert record["target_tokens_per_second"] == pytest.approx(100.0)
    assert record["flops_per_step"] == pytest.approx(4000.0)
    assert record["flops_per_second"] == pytest.approx(2000.0)
    assert record["step"] == 2


def test_a_window_resumes_from_its_state():
    window, resumed = MetricsWindow([report(1)]), MetricsWindow()
    for state in window.state():
        resumed.add(StepReport(**state))
    assert resumed.record() == window.record()


def test_a_loss_too_large_for_a_perplexity_can_be_shown():
    window = MetricsWindow([report(1, nll=5000.0)])
    assert "ppl" in window.figures()
