"""The training loop: batches in, better weights out."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tfm.config import RunConfig
from tfm.data.batching import Batch, Batcher
from tfm.data.dataset import ParallelDataset, Rows
from tfm.errors import TrainingError
from tfm.model.cost import Cost
from tfm.runtime.device import Compute
from tfm.training.loss import label_smoothed_cross_entropy
from tfm.training.optimizer import adam, learning_rate, peak_learning_rate


class TrainableModel(Protocol):
    """What training needs of a sequence-to-sequence model, which is a torch module too."""

    output_weight: nn.Parameter  # [V, d_model]

    def __call__(self, source: Tensor, lengths: Tensor, target_input: Tensor, /) -> Tensor:
        """Map [B, S] sources, [B] lengths and [B, T] target inputs to [B, T, d_model]."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, each once."""

    def train(self, mode: bool = True) -> object:
        """Switch dropout on or off."""


@dataclass
class Position:
    """How far a run has come.

    Attributes:
        step: Optimiser steps done.
        epoch: The epoch it is in, counted from 1.
        batch: Batches done in that epoch.
        pairs: Sentence pairs seen.
        tokens: Target tokens seen.
        flops: Operations done on them.
    """

    step: int = 0
    epoch: int = 1
    batch: int = 0
    pairs: int = 0
    tokens: int = 0
    flops: int = 0


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The figures of one step.

    Attributes:
        step: Its number, counted from 1.
        epoch: Its epoch, counted from 1.
        loss: Smoothed cross-entropy in nats a target token.
        nll: Plain negative log-likelihood in nats a target token.
        num_tokens: Target tokens.
        flops: Operations of the model, forward and backward, on tokens that are not padding.
        gradient_norm: Before clipping.
        learning_rate: Of this step.
        seconds: Wall time it took.
    """

    step: int
    epoch: int
    loss: float
    nll: float
    num_tokens: int
    flops: int
    gradient_norm: float
    learning_rate: float
    seconds: float


class Trainer:
    """Trains a model on a dataset; iterate over it to train.

    Weights, order and dropout follow from the seed and the step alone, so that a run which is
    stopped and resumed is the same run.

    Args:
        model: The model, on its device.
        dataset: Training pairs.
        run: All settings.
        compute: Device and arithmetic.
        cost: What the model costs.
    """

    def __init__(
        self,
        model: TrainableModel,
        dataset: ParallelDataset,
        run: RunConfig,
        compute: Compute,
        *,
        cost: Cost,
    ) -> None:
        self.model = model
        self.batcher = Batcher(dataset, run.batching, seed=run.training.seed)
        self.position = Position()
        self._run = run
        self._compute = compute
        self._cost = cost
        self._peak = peak_learning_rate(run.optimizer, run.model.d_model)
        self._optimizer = adam(model.parameters(), run.optimizer)
        # fp16 gradients are scaled up so that small ones do not vanish; other types need none.
        self._scaler = torch.amp.GradScaler(
            compute.device.type, enabled=compute.dtype == torch.float16
        )

    def __iter__(self) -> Iterator[StepReport]:
        """Train step by step, epoch after epoch, without end."""
        while True:
            batches = self.batcher.epoch(self.position.epoch)
            for rows in batches[self.position.batch :]:
                yield self.step(rows)
            self.position.epoch += 1
            self.position.batch = 0

    def step(self, rows: Rows) -> StepReport:
        """Make one step on one batch.

        Args:
            rows: The sentence pairs of the batch.

        Raises:
            TrainingError: The loss or its gradients are no longer finite; weights are unchanged.
        """
        started = time.perf_counter()
        step = self.position.step + 1
        torch.manual_seed(_mixed_seed(self._run.training.seed, step))
        self.model.train()
        parts = [part.to(self._compute.device) for part in self.batcher.parts(rows)]
        num_tokens = sum(part.num_tokens for part in parts)
        loss = nll = torch.zeros((), device=self._compute.device)
        for part in parts:
            with self._compute.autocast():
                part_loss, part_nll = batch_loss(
                    self.model, part, smoothing=self._run.optimizer.label_smoothing
                )
            self._scaler.scale(part_loss / num_tokens).backward()  # type: ignore[no-untyped-call]
            loss, nll = loss + part_loss.detach(), nll + part_nll
        mean_loss, norm = float(loss) / num_tokens, self._gradient_norm()
        # Scaled gradients may overflow now and then: the scaler skips the step and scales less.
        if not (math.isfinite(mean_loss) and (math.isfinite(norm) or self._scaler.is_enabled())):
            raise TrainingError(
                f"step {step}: loss {mean_loss}, gradient norm {norm}: not finite; "
                "the weights of the step before stand. Lower the learning rate or set clip_norm"
            )
        rate = learning_rate(step, peak=self._peak, warmup_steps=self._run.optimizer.warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        self.position.step = step
        self.position.batch += 1
        self.position.pairs += len(rows)
        self.position.tokens += num_tokens
        flops = self._cost.training_flops(*self.batcher.lengths(rows))
        self.position.flops += flops
        return StepReport(
            step=step,
            epoch=self.position.epoch,
            loss=mean_loss,
            nll=float(nll) / num_tokens,
            num_tokens=num_tokens,
            flops=flops,
            gradient_norm=norm,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
        )

    def state(self) -> dict[str, Any]:
        """What, besides the weights, is needed to go on as if nothing had happened."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "position": asdict(self.position),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        self._optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty if the run did not compute in fp16 so far
            self._scaler.load_state_dict(state["scaler"])
        self.position = Position(**state["position"])

    def _gradient_norm(self) -> float:
        """The norm of the gradient, which is clipped if the settings say so."""
        self._scaler.unscale_(self._optimizer)
        limit = self._run.optimizer.clip_norm or math.inf
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))


def _mixed_seed(seed: int, step: int) -> int:
    """A seed for one step of one run, in whose every bit both numbers count."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])


def batch_loss(model: TrainableModel, batch: Batch, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over its target tokens.

    Args:
        model: Maps sources and target inputs to decoder outputs.
        batch: On the model's device.
        smoothing: ε of the label smoothing.
    """
    hidden = model(batch.source, batch.source_lengths, batch.target_input)
    columns = torch.arange(hidden.size(1), device=hidden.device)
    real = columns < batch.target_lengths[:, None]
    return label_smoothed_cross_entropy(
        hidden[real], model.output_weight, batch.target_output[real], smoothing=smoothing
    )


def evaluate(model: TrainableModel, batcher: Batcher, compute: Compute) -> float:
    """Negative log-likelihood of a dataset in nats a target token, end of sentence included."""
    model.train(False)
    total, num_tokens = 0.0, 0
    with torch.inference_mode():
        for rows in batcher.epoch(1):
            for part in batcher.parts(rows):
                with compute.autocast():
                    _, nll = batch_loss(model, part.to(compute.device), smoothing=0.0)
                total += float(nll)
                num_tokens += part.num_tokens
    return total / num_tokens
