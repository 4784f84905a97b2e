"""Adam, its learning rate schedule (Vaswani et al. 2017, §5.3), and loss scaling for fp16."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tfm.config import OptimizerConfig

_MAX_LOSS_SCALE = 2.0**24
_STEPS_TO_GROW = 2_000


def learning_rate(step: int, config: OptimizerConfig, d_model: int) -> float:
    """Return a rate that rises linearly to the peak, then falls with the step's inverse root.

    Steps count from 1. Unless it is set, the peak is (d_model · warmup)^-0.5, which gives the
    paper's d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).
    """
    warmup, peak = config.warmup_steps, config.learning_rate
    if peak is None:
        peak = (d_model * warmup) ** -0.5
    return float(peak * min(step / warmup, (warmup / step) ** 0.5))


class Adam:
    """Adam (§5.3) as one fused operation over all parameters, which are on one device.

    torch.optim.Adam computes the same, but its constructor imports torch's compiler, which takes
    two seconds.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = list(parameters)
        self._config = config
        # First and second moment of each parameter that has been updated.
        self.moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.num_updates = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update all parameters that have a gradient."""
        self.num_updates += 1
        updated = [p for p in self._parameters if p.grad is not None]
        for parameter in updated:
            if parameter not in self.moments:
                self.moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        number = torch.tensor(float(self.num_updates), device=updated[0].device)
        torch._fused_adam_(
            list[Tensor](updated),
            [p.grad for p in updated if p.grad is not None],
            [self.moments[p][0] for p in updated],
            [self.moments[p][1] for p in updated],
            [],
            [number] * len(updated),
            lr=learning_rate,
            beta1=self._config.adam_beta1,
            beta2=self._config.adam_beta2,
            eps=self._config.adam_epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters:
            parameter.grad = None


@dataclass
class LossScale:
    """A factor for the fp16 loss, whose small gradients would underflow.

    The gradient is divided by it again before the update. It is halved when a gradient overflows,
    and doubled after many steps without overflow.
    """

    value: float = 2.0**16  # a power of two
    good_steps: int = 0  # without overflow since the last change

    def halve(self) -> bool:
        """Halve the scale after an overflow; return whether it was above its minimum, 1."""
        if self.value <= 1.0:
            return False
        self.value /= 2
        self.good_steps = 0
        return True

    def note_good_step(self) -> None:
        """Count a step without overflow."""
        self.good_steps += 1
        if self.good_steps == _STEPS_TO_GROW and self.value < _MAX_LOSS_SCALE:
            self.value *= 2
            self.good_steps = 0
