"""Adam and AdamW, the learning rate (§5.3), the average of weights, and loss scaling for fp16."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tfm.config import OptimizerConfig, RunConfig
from tfm.config.imported import imported
from tfm.errors import UsageError
from tfm.training.gradients import local_part

_FIRST_LOSS_SCALE, _MAX_LOSS_SCALE = 2.0**16, 2.0**24
_STEPS_TO_GROW = 2_000
_DEFAULT_WEIGHT_DECAY = 0.01  # as in torch.optim.AdamW


def learning_rate(step: int, run: RunConfig, last_step: int) -> float:
    """Return a rate that rises linearly to the peak, then follows the schedule; or a user's rate.

    Steps count from 1. Unless it is set, the peak is (d_model · warmup)^-0.5, with which the
    inverse root gives the paper's d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) (§5.3). The
    linear and the cosine schedule would be 0 at the step after `last_step`. A schedule of the user
    is called with the step and the settings.
    """
    schedule = run.optimizer.lr_schedule
    if ":" in schedule:
        rate = imported(schedule, "lr_schedule")(step, run)
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise UsageError(
                f"lr_schedule {schedule} returns {rate!r} for step {step:,}, but must return a "
                "number from 0 on"
            )
        return float(rate)
    warmup, peak = run.optimizer.warmup_steps, run.optimizer.learning_rate
    if peak is None:
        peak = (run.model.d_model * warmup) ** -0.5
    if step <= warmup:
        return float(peak * (step / warmup))
    match schedule:
        case "linear":
            factor = 1 - _elapsed(step, warmup, last_step)
        case "cosine":
            factor = (1 + math.cos(math.pi * _elapsed(step, warmup, last_step))) / 2
        case "constant":
            factor = 1.0
        case _:
            factor = (warmup / step) ** 0.5
    return float(peak * factor)


def _elapsed(step: int, warmup: int, last_step: int) -> float:
    """Return the fraction of the decay that is done: 0 after warmup, 1 one step after the last."""
    return min(1.0, (step - warmup) / (last_step + 1 - warmup))


class Adam:
    """Adam (§5.3) or AdamW, as one fused operation over all parameters.

    AdamW (Loshchilov and Hutter 2019) first multiplies a parameter by 1 − rate · decay. Matrices
    decay, embeddings included; vectors, which are biases and weights of layer norms, do not.

    torch.optim.Adam computes the same, but its constructor imports torch's compiler, which takes
    two seconds. All parameters must be on one device.

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
        self._decay = 0.0
        if config.algorithm == "adamw":
            decay = config.weight_decay
            self._decay = _DEFAULT_WEIGHT_DECAY if decay is None else decay
        self.moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.num_updates = torch.zeros((), device=self._parameters[0].device)

    def missing_bytes(self) -> int:
        """Return the bytes of the moments that the first update will allocate in this process."""
        missing = [each for each in self._parameters if each not in self.moments]
        return sum(2 * each.element_size() * local_part(each).numel() for each in missing)

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return the gradients, of any shape, of all parameters that have a gradient."""
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
            grad_scale: A scalar []; gradients are divided by it first.
            found_inf: A scalar []; if it is 1, nothing is updated.
        """
        self.num_updates += 1
        for parameter in gradients:
            if parameter not in self.moments:
                first, second = (torch.zeros_like(parameter) for _ in range(2))
                self.moments[parameter] = first, second
        groups: dict[float, dict[nn.Parameter, Tensor]] = {}  # by weight decay
        for parameter, gradient in gradients.items():
            decay = self._decay if parameter.dim() > 1 else 0.0
            groups.setdefault(decay, {})[parameter] = gradient
        for decay, group in groups.items():
            self._update(group, learning_rate, decay, grad_scale, found_inf)
        if found_inf is not None:
            self.num_updates -= found_inf

    def _update(
        self,
        gradients: Mapping[nn.Parameter, Tensor],
        learning_rate: float,
        decay: float,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Update parameters that have the same weight decay."""
        update: Any = torch._fused_adamw_ if decay else torch._fused_adam_
        update(
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
            weight_decay=decay,
            amsgrad=False,
            maximize=False,
            grad_scale=grad_scale,
            found_inf=found_inf,
        )

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters:
            parameter.grad = None


class WeightAverage:
    """The exponential moving average of the weights.

    After update t, average = d · average + (1 − d) · weight, with d = min(decay, (1 + t)/(10 + t)),
    as in TensorFlow's ExponentialMovingAverage and in Marian: it soon forgets the first weights.

    Args:
        parameters: All parameters; the average begins as a copy of them.
        decay: The largest d.

    Attributes:
        averages: The average of each parameter, of its shape and sharded like it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self._decay = decay
        self.averages = {parameter: parameter.detach().clone() for parameter in parameters}

    @torch.no_grad()
    def update(self, num_updates: Tensor, skipped: Tensor) -> None:
        """Average the newest weights, without waiting for the device.

        Args:
            num_updates: A scalar [], the number of updates t.
            skipped: A scalar []; if it is 1, nothing changes.
        """
        rate = (9 / (10 + num_updates)).clamp(min=1 - self._decay) * (1 - skipped)
        for parameter, average in self.averages.items():
            local_part(average).lerp_(local_part(parameter), rate)


class LossScale:
    """A factor for the fp16 loss, so that small gradients do not underflow; 1 otherwise.

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
