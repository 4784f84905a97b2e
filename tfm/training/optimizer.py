"""Adam, its learning rate schedule (Vaswani et al. 2017, §5.3), and loss scaling for fp16."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tfm.config import OptimizerConfig

_FIRST_LOSS_SCALE, _MAX_LOSS_SCALE = 2.0**16, 2.0**24
_STEPS_TO_GROW = 2_000
# An operation without a public name: a version of torch may lack it.
_FUSED_ADAM: Any = getattr(torch, "_fused_adam_", None)


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
    """Adam (§5.3), if torch can as one fused operation over all parameters, on one device.

    torch.optim.Adam computes the same, but its constructor imports torch's compiler, which takes
    two seconds.

    Args:
        parameters: All parameters.
        config: The settings.

    Attributes:
        moments: First and second moment of each parameter that has been updated.
        num_updates: A scalar on the device, which alone knows whether an update was skipped.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = list(parameters)
        self._config = config
        self.moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.num_updates = torch.zeros((), device=self._parameters[0].device)

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return the gradients, of any shape, of all parameters that have one."""
        return {p: p.grad for p in self._parameters if p.grad is not None}

    @torch.no_grad()
    def step(
        self,
        gradients: Mapping[nn.Parameter, Tensor],
        learning_rate: float,
        *,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Update all parameters that have a gradient, without waiting for the device.

        Args:
            gradients: The gradients.
            learning_rate: The factor of the update.
            grad_scale: A scalar [] by which gradients are divided first.
            found_inf: A scalar []; if it is 1, nothing is updated.
        """
        self.num_updates += 1
        for parameter in gradients:
            if parameter not in self.moments:
                first, second = (torch.zeros_like(parameter) for _ in range(2))
                self.moments[parameter] = first, second
        if _FUSED_ADAM is None:
            self._update_each(gradients, learning_rate, grad_scale, found_inf)
        else:
            _FUSED_ADAM(
                list(gradients),
                list(gradients.values()),
                [self.moments[p][0] for p in gradients],
                [self.moments[p][1] for p in gradients],
                [],
                [self.num_updates] * len(gradients),
                lr=learning_rate,
                beta1=self._config.adam_beta1,
                beta2=self._config.adam_beta2,
                eps=self._config.adam_epsilon,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )
        if found_inf is not None:
            self.num_updates -= found_inf

    def _update_each(
        self,
        gradients: Mapping[nn.Parameter, Tensor],
        learning_rate: float,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Update parameters one after another, with public operations."""
        beta1, beta2 = self._config.adam_beta1, self._config.adam_beta2
        rate = learning_rate / (1 - beta1**self.num_updates)
        correction = 1 - beta2**self.num_updates
        for parameter, gradient in gradients.items():
            gradient = gradient if grad_scale is None else gradient / grad_scale
            first, second = self.moments[parameter]
            new_first = first.lerp(gradient, 1 - beta1)
            new_second = second.lerp(gradient.square(), 1 - beta2)
            step = rate * new_first / ((new_second / correction).sqrt() + self._config.adam_epsilon)
            updated = {first: new_first, second: new_second, parameter: parameter - step}
            for old, new in updated.items():
                old.copy_(new if found_inf is None else torch.where(found_inf == 1, old, new))

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters:
            parameter.grad = None


class LossScale:
    """A factor for the fp16 loss, whose small gradients would underflow; 1 in other precisions.

    The gradient is divided by it again before the update. It is halved when a gradient overflows,
    and doubled after many steps without overflow, both on the device.

    Attributes:
        value: A scalar, a power of two.
    """

    def __init__(self, device: torch.device, *, is_fp16: bool) -> None:
        self.is_fp16 = is_fp16
        self.value = torch.full((), _FIRST_LOSS_SCALE if is_fp16 else 1.0, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)  # since a change

    def weight(self, num_tokens: int) -> float | Tensor:
        """Return the factor of a loss that is a sum over N tokens: a scalar [] in fp16."""
        return self.value / num_tokens if self.is_fp16 else 1.0 / num_tokens

    def update(self, found_inf: Tensor) -> None:
        """Adapt to whether the gradient of a step overflowed, a scalar [] of 0 or 1."""
        if self.is_fp16:
            self._good_steps.add_(1).masked_fill_(found_inf > 0, 0)
            grows = self._good_steps == _STEPS_TO_GROW
            self._good_steps.masked_fill_(grows, 0)
            self.value.mul_(1 + grows.float() - found_inf / 2).clamp_(1.0, _MAX_LOSS_SCALE)

    def state(self) -> dict[str, float] | None:
        """Return the state for a checkpoint; None without scaling."""
        if not self.is_fp16:
            return None
        return {"value": float(self.value), "good_steps": int(self._good_steps)}

    def load_state(self, state: dict[str, float] | None) -> None:
        """Continue from a saved state, if there is one and the loss is scaled."""
        if state is not None and self.is_fp16:
            self.value.fill_(state["value"])
            self._good_steps.fill_(state["good_steps"])
