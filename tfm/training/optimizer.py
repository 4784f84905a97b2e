"""Adam and the learning rate (Vaswani et al. 2017, §5.3)."""

from collections.abc import Iterable

import torch
from torch import nn

from tfm.config import OptimizerConfig


def peak_learning_rate(config: OptimizerConfig, d_model: int) -> float:
    """The learning rate at the end of warm-up: the paper's unless set."""
    if config.learning_rate is not None:
        return config.learning_rate
    return float((d_model * config.warmup_steps) ** -0.5)


def learning_rate(step: int, *, peak: float, warmup_steps: int) -> float:
    """Rise linearly to the peak, then fall with the inverse square root of the step.

    With the peak (d_model · warmup)^-0.5 this is d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).

    Args:
        step: Number of the step, counted from 1.
        peak: Learning rate at step `warmup_steps`.
        warmup_steps: Length of the warm-up.
    """
    return float(peak * min(step / warmup_steps, (warmup_steps / step) ** 0.5))


def adam(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Adam:
    """Adam as in §5.3; the learning rate is set before each step."""
    return torch.optim.Adam(
        parameters,
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )
