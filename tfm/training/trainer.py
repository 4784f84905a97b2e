"""The training loop: batches in, better weights out."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfm.backends.selection import training_backend
from tfm.config import RunConfig
from tfm.data.batching import Batcher
from tfm.data.dataset import ParallelDataset, Rows
from tfm.device.compute import Compute
from tfm.device.threads import ComputeThreads
from tfm.distributed.group import Group
from tfm.errors import UsageError
from tfm.model.build import use_backend
from tfm.model.cost import Cost
from tfm.training.batch_gradient import BatchGradient
from tfm.training.gradients import like, scale_gradient, whole
from tfm.training.loss import PackedModel, PartLoss, TrainableModel, batch_loss
from tfm.training.optimizer import Adam, learning_rate, peak_learning_rate
from tfm.training.progress import Beat, Position, StepReport, Wishes, no_wishes, unwatched

_MOMENTS = ("exp_avg", "exp_avg_sq")  # what checkpoints call them, as torch does


class Trainer:
    """Trains a model on a dataset, step by step, with the other processes of its group.

    Weights, order and dropout follow from the seed, the step and the part of its batch alone, so
    that a run which is stopped and resumed is the same run, and so is one on other devices.

    Args:
        model: The model, on its device.
        dataset: Training pairs.
        run: All settings.
        compute: Device and arithmetic.
        cost: What the model costs.
        group: The processes that train together.
        beat: Told where a step stands, so that a process which stalls is noticed.
        threads: Adapted between steps; None leaves the threads of torch as they are.

    Raises:
        UsageError: Fast kernels are asked for where there are none.
    """

    def __init__(
        self,
        model: TrainableModel,
        dataset: ParallelDataset,
        run: RunConfig,
        compute: Compute,
        *,
        cost: Cost,
        group: Group | None = None,
        beat: Beat = unwatched,
        threads: ComputeThreads | None = None,
    ) -> None:
        self.model = model
        self._threads = threads
        self.batcher = Batcher(dataset, run.batching, seed=run.training.seed)
        self.position = Position()
        if run.training.kernels == "fast" and not isinstance(model, PackedModel):
            raise UsageError("--kernels fast is for the Transformer alone: use --kernels auto")
        backend = training_backend(compute, run.training.kernels)
        use_backend(model, backend)
        self.gradient = BatchGradient(
            PartLoss(model, smoothing=run.optimizer.label_smoothing),
            self.batcher,
            run,
            compute,
            backend=backend,
            group=group or Group(),
            beat=beat,
        )
        self._run = run
        self._cost = cost
        self._peak = peak_learning_rate(run.optimizer, run.model.d_model)
        self._optimizer = Adam(self.gradient.parameters, run.optimizer)

    def batches(self) -> Iterator[Rows]:
        """The batches to come, epoch after epoch, without end."""
        position = self.position
        while True:
            batches = self.batcher.epoch(position.epoch)
            ends = np.cumsum([len(rows) for rows in batches])
            yield from batches[int(np.searchsorted(ends, position.examples, side="right")) :]
            position.epoch += 1
            position.examples = 0

    def step(self, rows: Rows, *, wishes: Callable[[], Wishes] = no_wishes) -> StepReport | None:
        """Make one step on one batch.

        Args:
            rows: The sentence pairs of the batch.
            wishes: Asked, more than once, what is to be done besides; all that one process wishes
                is in `gradient.agreed`.

        Returns:
            Its figures; None if a stop was agreed on before it was done, and nothing has changed.

        Raises:
            TrainingError: Memory is too small for a single sentence pair.
            LostPeersError: The other processes are gone.
        """
        started = time.perf_counter()
        if self._threads is not None:
            self._threads.adapt()
        position = self.position
        step = position.step + 1
        num_tokens = int(self.batcher.lengths(rows)[1].sum())
        self.model.train()
        totals = self.gradient.compute(rows, step=step, wishes=wishes)
        if totals is None:
            return None
        loss, nll, norm = totals
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        rate = learning_rate(step, peak=self._peak, warmup_steps=self._run.optimizer.warmup_steps)
        if not skipped:
            self._update(norm, rate)
        self._optimizer.zero_grad()
        flops = self._cost.training_flops(*self.batcher.lengths(rows))
        position.step = step
        position.examples += len(rows)
        position.pairs += len(rows)
        position.tokens += num_tokens
        position.flops += flops
        position.skipped += skipped
        position.skipped_in_a_row = position.skipped_in_a_row + 1 if skipped else 0
        return StepReport(
            step=step,
            epoch=position.epoch,
            loss=loss,
            nll=nll,
            num_tokens=num_tokens,
            flops=flops,
            gradient_norm=norm,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
            skipped=skipped,
        )

    def weights(self, *, keep: bool = True) -> dict[str, Tensor]:
        """All parameters by name, each once; all processes must ask together.

        Args:
            keep: Whether this process has a use for them: else they are empty if they are shared.
        """
        return {
            name: whole(parameter, keep=keep) for name, parameter in self.model.named_parameters()
        }

    def state(self, *, keep: bool = True) -> dict[str, Any]:
        """What, besides the weights, is needed to go on as if nothing had happened.

        All processes must ask together.

        Args:
            keep: Whether this process has a use for it.
        """
        moments = {
            name: {
                key: whole(moment, keep=keep)
                for key, moment in zip(_MOMENTS, self._optimizer.moments[parameter], strict=True)
            }
            for name, parameter in self.model.named_parameters()
            if parameter in self._optimizer.moments
        }
        return {
            "moments": moments,
            "updates": self._optimizer.num_updates,
            "gradient": self.gradient.state(),
            "position": asdict(self.position),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        for name, parameter in self.model.named_parameters():
            if name in state["moments"]:
                first, second = (like(state["moments"][name][key], parameter) for key in _MOMENTS)
                self._optimizer.moments[parameter] = first, second
        self._optimizer.num_updates = state["updates"]
        self.gradient.load_state(state["gradient"])
        self.position = Position(**state["position"])

    def _update(self, norm: float, rate: float) -> None:
        limit = self._run.optimizer.clip_norm
        if limit and norm > limit:
            scale_gradient(self.gradient.parameters, limit / norm)
        self._optimizer.step(rate)


def evaluate(
    model: TrainableModel,
    batcher: Batcher,
    compute: Compute,
    *,
    group: Group | None = None,
    beat: Beat = unwatched,
    stopped: Callable[[], bool] = lambda: False,
) -> float | None:
    """Negative log-likelihood of a dataset in nats a target token, end of sentence included.

    Args:
        model: The whole model, the same on all processes.
        batcher: Batches of the dataset.
        compute: Device and arithmetic.
        group: The processes that share the work.
        beat: Told where it stands.
        stopped: Whether to give up.

    Returns:
        The loss; None if a process gave up.
    """
    group = group or Group()
    model.train(False)
    parts = [part for rows in batcher.epoch(1) for part in batcher.split(rows)]
    sums = torch.zeros(3, dtype=torch.float64)  # nll, tokens, processes that gave up
    with torch.inference_mode():
        for rows in parts[group.world.rank :: group.world.size]:
            beat("the loss of the validation")
            if stopped():
                sums[2] = 1
                break
            part = batcher.part(rows)
            with compute.autocast():
                _, nll = batch_loss(model, part.to(compute.device), smoothing=0.0)
            sums += torch.tensor([float(nll), part.num_tokens, 0])
    beat("the sum of the loss of the validation", waits=True)
    total, num_tokens, num_stopped = group.sum(sums).tolist()
    return None if num_stopped else float(total / num_tokens)
