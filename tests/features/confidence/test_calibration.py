"""The calibration of confidence: a monotone curve through groups of translations."""

import numpy as np
import pytest

from tfm.config.values import from_table
from tfm.features.confidence.step import Confidence, fit
from tfm.folders.model_info import Calibration
from tfm.translation.steps import Output


def confidence(calibration, log_prob, num_tokens):
    output = Output("", score=0.0, log_prob=log_prob, pieces=("x",) * num_tokens)
    [[found]] = Confidence(calibration).after([None], [[output]])
    return found.confidence


def test_the_curve_is_that_of_a_monotone_relation():
    log_probs = np.linspace(-4, 0, 2_000)
    calibration = fit(log_probs, np.exp(log_probs))
    for log_prob in (-3.5, -1.0, -0.2):
        expected = pytest.approx(np.exp(log_prob), abs=0.01)
        assert confidence(calibration, log_prob * 7, 7) == expected
    assert confidence(calibration, -99, 1) == calibration.qualities[0]
    assert confidence(calibration, 0, 1) == calibration.qualities[-1]


@pytest.mark.parametrize("seed", range(5))
def test_noise_never_makes_the_curve_fall_or_changes_its_mean(seed):
    generator = np.random.default_rng(seed)
    log_probs = -generator.exponential(size=400)
    qualities = np.clip(np.exp(log_probs) + generator.normal(scale=0.5, size=400), 0, 1)
    calibration = fit(log_probs, qualities)
    for values in (calibration.log_probs, calibration.qualities):
        assert list(values) == sorted(values)
    assert np.mean(calibration.qualities) == pytest.approx(qualities.mean())
    assert calibration.num_lines == 400


def test_quality_that_falls_with_probability_is_constant():
    log_probs = np.linspace(-4, 0, 200)
    calibration = fit(log_probs, np.linspace(1, 0, 200))
    assert calibration.qualities == pytest.approx([0.5] * 20)


@pytest.mark.parametrize(
    ("log_probs", "qualities"),
    [
        ([], []),
        ([-2.0, -1.0], [0.5]),
        ([-1.0, -2.0], [0.5, 0.6]),
        ([-2.0, -1.0], [0.5, 1.1]),
        ([-2.0, -1.0], [-0.1, 0.5]),
        ([-2.0, float("nan")], [0.4, 0.5]),
        ([-2.0, -1.0], [0.4, float("inf")]),
    ],
)
def test_a_record_of_another_curve_is_refused(log_probs, qualities):
    with pytest.raises(ValueError, match=r"log_probs|qualities"):
        from_table(Calibration, {"num_lines": 9, "log_probs": log_probs, "qualities": qualities})


def test_the_order_of_translations_does_not_matter():
    generator = np.random.default_rng(0)
    log_probs, qualities = -generator.random(150), generator.random(150)
    order = generator.permutation(150)
    assert fit(log_probs, qualities) == fit(log_probs[order], qualities[order])
