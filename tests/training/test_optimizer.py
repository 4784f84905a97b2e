"""Adam, AdamW, learning rate schedules and the average of weights, computed by hand (§5.3)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tfm.config import OptimizerConfig, RunConfig, TrainingConfig, TransformerConfig
from tfm.training import optimizer
from tfm.training.optimizer import Adam, LossScale, WeightAverage, learning_rate


def rate_of(step, *, d_model=512, max_steps=100_000, **settings):
    run = RunConfig(
        model=TransformerConfig(d_model=d_model),
        optimizer=OptimizerConfig(**settings),
        training=TrainingConfig(max_epochs=3),
    )
    return learning_rate(step, run, max_steps)


@given(st.integers(1, 1_000_000), st.integers(1, 10_000), st.sampled_from([16, 512, 1024]))
def test_the_learning_rate_follows_the_paper(step, warmup_steps, d_model):
    found = rate_of(step, d_model=d_model, warmup_steps=warmup_steps)
    expected = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_paper_base_model_peaks_at_seven_ten_thousandths():
    peak = rate_of(4000)
    assert peak == pytest.approx(6.9877e-4, rel=1e-4)
    assert rate_of(3999) < peak > rate_of(4001)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("inverse-sqrt", [0.25, 0.5, 0.5 * (2 / 3) ** 0.5, 0.5 * 0.5**0.5, 0.5 * (2 / 5) ** 0.5]),
        ("linear", [0.25, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [0.25, 0.5, 0.25 * (1 + math.cos(math.pi / 4)), 0.25, 0.25 * (1 - 0.5**0.5)]),
        ("constant", [0.25, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_schedules_follow_their_formulas_after_a_linear_warmup(schedule, expected):
    settings = {"learning_rate": 0.5, "warmup_steps": 2, "lr_schedule": schedule}
    found = [rate_of(step, max_steps=5, **settings) for step in range(1, 6)]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 0.0), ({"algorithm": "adamw"}, 0.01), ({"algorithm": "adamw", "weight_decay": 0.0}, 0.0)],
)
def test_weights_decay_only_with_adamw_and_by_default_as_in_torch(settings, expected):
    matrix = nn.Parameter(torch.ones(1, 1))
    adam = Adam([matrix], OptimizerConfig(**settings))
    adam.step({matrix: torch.zeros(1, 1)}, 0.5)
    assert matrix.item() == pytest.approx(1 - 0.5 * expected, rel=1e-6)


def test_the_average_of_weights_follows_the_formula_and_ignores_skipped_updates():
    parameter = nn.Parameter(torch.tensor([4.0]))
    average, expected = WeightAverage([parameter], decay=0.25), 4.0
    # The fraction (1 + t) / (10 + t) of the old average is 2/11 and 3/12; then the decay is less.
    for num_updates, value, is_skipped, kept in [
        (1, 1.0, 0, 2 / 11),
        (2, 2.0, 0, 3 / 12),
        (2, 9.0, 1, 1.0),
        (3, 8.0, 0, 0.25),
    ]:
        nn.init.constant_(parameter, value)
        average.update(torch.tensor(float(num_updates)), torch.tensor(float(is_skipped)))
        expected = kept * expected + (1 - kept) * value
        assert average.averages[parameter].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("algorithm", ["adam", "adamw"])
def test_updates_are_those_of_torch_and_only_matrices_decay(algorithm):
    torch.manual_seed(0)
    decay = 0.1 if algorithm == "adamw" else None
    ours, theirs = ([nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(5))] for _ in "ab")
    adam = Adam(ours, OptimizerConfig(algorithm=algorithm, weight_decay=decay))
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[algorithm](
        [{"params": theirs[:1], "weight_decay": decay or 0.0}, {"params": theirs[1:]}],
        lr=1e-2, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True,
    )  # fmt: skip
    for _ in range(4):
        for parameter, copy in zip(ours, theirs, strict=True):
            parameter.grad = torch.randn_like(parameter)
            copy.grad = parameter.grad.clone()
        adam.step(adam.gradients(), 1e-2)
        reference.step()
    adam.zero_grad()
    assert all(parameter.grad is None for parameter in ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_parameter_without_a_gradient_is_unchanged():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = Adam([first, second], OptimizerConfig())
    first.grad = torch.ones(2)
    adam.step(adam.gradients(), 0.1)
    assert first.tolist() != [1, 1]
    assert second.tolist() == [1, 1]
    assert set(adam.moments) == {first}


def test_gradients_are_divided_by_their_scale_and_skipped_if_one_overflowed():
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    scaled, plain = (Adam([parameter], OptimizerConfig()) for parameter in parameters)
    scale = torch.tensor(8.0)
    for gradient in ([0.5, -1.0, 0.0], [torch.inf, 1.0, torch.nan], [2.0, 0.25, -0.5]):
        overflows = torch.tensor(float(torch.inf in gradient))
        gradients = {parameters[0]: 8 * torch.tensor(gradient)}
        scaled.step(gradients, 0.1, grad_scale=scale, found_inf=overflows)
        if not overflows:
            plain.step({parameters[1]: torch.tensor(gradient)}, 0.1)
    assert scaled.num_updates == plain.num_updates == 2
    torch.testing.assert_close(*parameters)


def test_the_loss_scale_halves_on_overflow_and_doubles_after_many_good_steps(monkeypatch):
    monkeypatch.setattr(optimizer, "_STEPS_TO_GROW", 3)
    scale = LossScale(torch.device("cpu"), is_fp16=True)
    values = []
    for overflows in [1, 0, 0, 1, 0, 0, 0, 0]:
        scale.update(torch.tensor(float(overflows)))
        values.append(float(scale.value) / 2**16)
    assert values == [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5]
    assert scale.state() == {"value": 2.0**15, "good_steps": 1}


@pytest.mark.parametrize(("overflows", "limit"), [(1.0, 1.0), (0.0, 2.0**24)])
def test_the_loss_scale_has_limits(monkeypatch, overflows, limit):
    monkeypatch.setattr(optimizer, "_STEPS_TO_GROW", 1)
    scale = LossScale(torch.device("cpu"), is_fp16=True)
    for _ in range(20):
        scale.update(torch.tensor(overflows))
    assert scale.state() == {"value": limit, "good_steps": 0}
