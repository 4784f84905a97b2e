"""Adam and its learning rate schedule, computed by hand (§5.3)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tfm.config import OptimizerConfig
from tfm.training.optimizer import Adam, learning_rate


@given(st.integers(1, 1_000_000), st.integers(1, 10_000), st.sampled_from([16, 512, 1024]))
def test_the_learning_rate_follows_the_paper(step, warmup_steps, d_model):
    found = learning_rate(step, OptimizerConfig(warmup_steps=warmup_steps), d_model)
    expected = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_paper_base_model_peaks_at_seven_ten_thousandths():
    config = OptimizerConfig()
    peak = learning_rate(4000, config, 512)
    assert peak == pytest.approx(6.9877e-4, rel=1e-4)
    assert learning_rate(3999, config, 512) < peak > learning_rate(4001, config, 512)


def test_the_learning_rate_of_the_settings_is_the_peak():
    config = OptimizerConfig(learning_rate=0.5, warmup_steps=20)
    assert [learning_rate(step, config, 512) for step in (10, 20, 80)] == [0.25, 0.5, 0.25]


def test_adam_updates_a_parameter_by_the_formulas():
    config = OptimizerConfig(adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-2)
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer = Adam([parameter], config)
    value, first, second = 1.0, 0.0, 0.0
    for step, gradient in enumerate((0.5, -0.25, 2.0), start=1):
        rate = 0.1 / step
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        unbiased_first, unbiased_second = first / (1 - 0.9**step), second / (1 - 0.98**step)
        value -= rate * unbiased_first / (math.sqrt(unbiased_second) + 1e-2)

        parameter.grad = torch.tensor([gradient])
        optimizer.step(optimizer.gradients(), rate)
        assert parameter.item() == pytest.approx(value, rel=1e-5)


def test_adam_equals_torchs_adam_with_the_defaults_of_the_paper():
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2)]
    parameters, expected = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    adam = Adam(parameters, OptimizerConfig())
    reference = torch.optim.Adam(expected, lr=1e-2, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for _ in range(4):
        for parameter, copy in zip(parameters, expected, strict=True):
            parameter.grad = torch.randn_like(parameter)
            copy.grad = parameter.grad.clone()
        adam.step(adam.gradients(), 1e-2)
        reference.step()
    adam.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)
    assert all(map(torch.equal, parameters, expected))


def test_a_parameter_without_a_gradient_is_unchanged():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = Adam([first, second], OptimizerConfig())
    first.grad = torch.ones(2)
    adam.step(adam.gradients(), 0.1)
    assert first.tolist() != [1, 1]
    assert second.tolist() == [1, 1]
    assert set(adam.moments) == {first}
