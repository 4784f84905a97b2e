"""The training step: forward, backward and update of one batch."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfm.backends.selection import training_backend
from tfm.config import RunConfig, TransformerConfig
from tfm.data.batching import Batch, Batcher
from tfm.data.dataset import ParallelDataset, Rows
from tfm.device.compute import Compute, is_out_of_memory
from tfm.device.threads import ComputeThreads
from tfm.distributed.group import Group
from tfm.errors import TrainingError, UsageError
from tfm.model.build import Model, use_backend
from tfm.model.cost import Cost
from tfm.training.gradients import (
    build_gradients,
    full_tensor,
    gradient_norm,
    scale_gradient,
    shard_like,
)
from tfm.training.loss import BatchLoss
from tfm.training.optimizer import Adam, LossScale, learning_rate
from tfm.training.progress import ControlFlags, Heartbeat, Position, StepReport, no_heartbeat

Poll = Callable[[], ControlFlags]
StepResult = tuple[StepReport | None, ControlFlags]

_MOMENTS = ("exp_avg", "exp_avg_sq")  # names in checkpoints, as in torch


class Trainer:
    """Trains a model step by step, together with the other processes of its group.

    Weights, data order and dropout depend only on the seed, the step and the microbatch. So a run
    that is stopped and resumed computes the same steps, on any number of processes.

    The model is on the device of `compute`. `heartbeat` is called at the start of each phase of a
    step. `threads` are adapted between steps; None leaves torch's number of threads unchanged.

    Raises:
        UsageError: The settings ask for fast kernels, but the model has none.
    """

    def __init__(
        self,
        model: Model,
        dataset: ParallelDataset,
        run: RunConfig,
        compute: Compute,
        *,
        cost: Cost,
        group: Group | None = None,
        heartbeat: Heartbeat = no_heartbeat,
        threads: ComputeThreads | None = None,
    ) -> None:
        if run.training.kernels == "fast" and not isinstance(run.model, TransformerConfig):
            raise UsageError("--kernels fast is for the Transformer alone: use --kernels auto")
        self.model = model
        self.batcher = Batcher(dataset, run.batching, seed=run.training.seed)
        self.position = Position()
        self.overflows = 0  # batches that were computed again after an fp16 overflow
        self.out_of_memory = 0  # batches that were computed again in smaller microbatches
        self._run = run
        self._compute = compute
        self._cost = cost
        self._group = group or Group()
        self._heartbeat = heartbeat
        self._threads = threads
        self._backend = training_backend(compute, run.training.kernels)
        use_backend(model, self._backend)
        loss = BatchLoss(model, label_smoothing=run.optimizer.label_smoothing)
        example = self._batch(np.zeros(1, dtype=np.int64))
        self._gradients = build_gradients(loss, self._group, example, shard=run.training.shard)
        self.parameters = list(loss.parameters())
        self._optimizer = Adam(self.parameters, run.optimizer)
        self._loss_scale = LossScale()  # used in fp16 only
        self._max_tokens = run.batching.max_tokens
        # A multiple of the processes, so that all compute equally many microbatches.
        self._num_dropout_shards = math.lcm(run.batching.num_dropout_shards, self._group.world.size)

    def batches(self) -> Iterator[Rows]:
        """Yield the batches after the current position, epoch after epoch, without end."""
        position = self.position
        while True:
            batches = self.batcher.epoch(position.epoch)
            ends = np.cumsum([len(rows) for rows in batches])
            yield from batches[int(np.searchsorted(ends, position.examples, side="right")) :]
            position.epoch += 1
            position.examples = 0

    def step(self, rows: Rows, *, poll: Poll = ControlFlags) -> StepResult:
        """Train on one batch; compute it again after fp16 overflow or out of memory.

        `poll` returns the control flags of this process; it is called several times.

        Returns:
            The report, or None if a stop came in time to leave everything unchanged; and the flags,
            combined over all processes.

        Raises:
            TrainingError: There is too little memory for a single sentence pair.
            LostPeersError: Other processes cannot be reached.
        """
        started = time.perf_counter()
        if self._threads is not None:
            self._threads.adapt()
        self.model.train()
        step, compute = self.position.step + 1, self._compute
        num_tokens = int(self.batcher.lengths(rows)[1].sum())
        while True:
            scale = self._loss_scale if compute.dtype == torch.float16 else LossScale(1.0)
            weight = scale.value / num_tokens
            sums, flags = self._accumulate_gradient(rows, weight, step, compute, poll)
            if sums is None:
                if flags.stop:
                    return None, flags
                self._use_smaller_microbatches(rows, step)
                continue
            loss, nll = (total / num_tokens for total in sums.tolist())
            norm = gradient_norm(self.parameters) / scale.value
            is_finite = math.isfinite(loss) and math.isfinite(norm)
            if is_finite or compute.dtype != torch.float16:
                break
            self.overflows += 1
            # Smaller scales do not help if the loss itself overflowed: use fp32.
            if not math.isfinite(loss) or not scale.halve():
                compute = replace(compute, dtype=torch.float32)
        settings = self._run.optimizer
        rate = learning_rate(step, settings, self._run.model.d_model)
        if is_finite:
            limit = settings.clip_norm
            clipping = limit / norm if limit and norm > limit else 1.0
            scale_gradient(self.parameters, clipping / scale.value)
            scale.note_good_step()
            self._optimizer.step(rate)
        self._optimizer.zero_grad()
        report = StepReport(
            step=step,
            epoch=self.position.epoch,
            loss=loss,
            nll=nll,
            num_tokens=num_tokens,
            flops=self._cost.training_flops(*self.batcher.lengths(rows)),
            gradient_norm=norm,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
            skipped=not is_finite,
        )
        self.position.advance(report, num_pairs=len(rows))
        return report, flags

    def _accumulate_gradient(
        self, rows: Rows, weight: float, step: int, compute: Compute, poll: Poll
    ) -> tuple[Tensor | None, ControlFlags]:
        """Compute the gradient of a batch's weighted loss; each rank takes some microbatches.

        Ranks sum their gradients in the last microbatch, so all must take part in it: before it,
        they exchange their flags, and whether one has run out of memory. Return the [2] sums of
        loss and negative log-likelihood over all ranks, or None after a stop or if a rank ran out
        of memory; and the combined flags.
        """
        self._optimizer.zero_grad()  # of an attempt that failed
        world, microbatches = self._group.world, self._split(rows)
        num_rounds = -(-len(microbatches) // world.size)
        indices = range(world.rank, num_rounds * world.size, world.size)
        # Loss, negative log-likelihood, number of ranks out of memory.
        sums = torch.zeros(3, dtype=torch.float64, device=compute.device)
        ran_out = False
        for index in indices[:-1]:
            if self._gradients.can_recover and poll().stop:
                break
            losses = self._forward_backward(microbatches, index, weight, step, compute)
            if losses is None:
                ran_out = True
                break
            sums[:2] += losses
        self._heartbeat("the exchange of control flags", waits=True)
        *values, any_ran_out = self._group.largest([*map(int, astuple(poll())), int(ran_out)])
        flags = ControlFlags(values[0], *map(bool, values[1:]))
        if flags.stop or any_ran_out:
            return None, flags
        losses = self._forward_backward(microbatches, indices[-1], weight, step, compute)
        if losses is None:
            sums[2] = 1
            self._gradients.release_peers()
        else:
            sums[:2] += losses
        self._heartbeat(f"step {step}, sums of losses", waits=True)
        if self._group.sum(sums)[2]:
            self._gradients.reset()
            return None, flags
        return sums[:2], flags

    def _forward_backward(
        self, microbatches: list[Rows], index: int, weight: float, step: int, compute: Compute
    ) -> Tensor | None:
        """Add the gradient of a microbatch's weighted loss to that of the batch.

        Return [2] sums of loss and negative log-likelihood; None if this rank ran out of memory.
        """
        # A rank without a microbatch of its own computes the first one with weight 0.
        is_real = index < len(microbatches)
        num_ranks = self._group.world.size
        is_last = index // num_ranks == (len(microbatches) - 1) // num_ranks
        can_recover = self._gradients.can_recover
        phase = f"microbatch {index + 1} of {len(microbatches)}"
        self._heartbeat(f"step {step}, {phase}", waits=not can_recover)
        try:
            with self._gradients.accumulate(is_last=is_last):
                batch = self._batch(microbatches[index if is_real else 0])
                self._backend.seed(_derive_seed(self._run.training.seed, step, index))
                with compute.autocast():
                    loss, nll = self._gradients.loss(batch)
                waits = is_last or not can_recover
                self._heartbeat(f"step {step}, gradient of {phase}", waits=waits)
                (loss * (weight if is_real else 0.0)).backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not can_recover:
                raise self._too_large(microbatches, step) from error
            return None
        losses = torch.stack([loss.detach(), nll])
        return losses if is_real else torch.zeros_like(losses)

    def _batch(self, rows: Rows) -> Batch:
        return self.batcher.batch(rows).to(self._compute.device)

    def _split(self, rows: Rows) -> list[Rows]:
        return self.batcher.split(
            rows, max_tokens=self._max_tokens, multiple_of=self._num_dropout_shards
        )

    def _use_smaller_microbatches(self, rows: Rows, step: int) -> None:
        """Split this and later batches into microbatches of half the size, if that is possible."""
        microbatches = self._split(rows)
        sizes = [self._num_padded(pairs) for pairs in microbatches if len(pairs) > 1]
        if not sizes:
            raise self._too_large(microbatches, step)
        self._max_tokens = max(sizes) // 2
        self.out_of_memory += 1
        self._optimizer.zero_grad()
        torch.cuda.empty_cache()  # so that blocks of other sizes fit

    def _too_large(self, microbatches: list[Rows], step: int) -> TrainingError:
        return TrainingError(
            f"step {step}: out of memory with a microbatch of "
            f"{max(map(self._num_padded, microbatches)):,} tokens per side: use a smaller "
            "--max-tokens, or a smaller model"
        )

    def _num_padded(self, rows: Rows) -> int:
        """Return the number of tokens of the longer side of a microbatch, with padding."""
        return len(rows) * self.batcher.longest(rows)

    def weights(self, *, keep: bool = True) -> dict[str, Tensor]:
        """Return all parameters by name, each once; all processes must call it together.

        Without `keep`, sharded ones have shape [0].
        """
        return {
            name: full_tensor(parameter, keep=keep)
            for name, parameter in self.model.named_parameters()
        }

    def state(self, *, keep: bool = True) -> dict[str, Any]:
        """Return the training state besides the weights; all processes must call it together.

        Without `keep`, sharded moments are empty.
        """
        moments = {
            name: {
                key: full_tensor(moment, keep=keep)
                for key, moment in zip(_MOMENTS, self._optimizer.moments[parameter], strict=True)
            }
            for name, parameter in self.model.named_parameters()
            if parameter in self._optimizer.moments
        }
        is_fp16 = self._compute.dtype == torch.float16
        return {
            "moments": moments,
            "updates": self._optimizer.num_updates,
            "gradient": {
                "num_dropout_shards": self._num_dropout_shards,
                "max_tokens": self._max_tokens if self.out_of_memory else None,
                "loss_scale": asdict(self._loss_scale) if is_fp16 else None,
                "overflows": self.overflows,
                "out_of_memory": self.out_of_memory,
            },
            "position": asdict(self.position),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a state that `state` returned."""
        for name, parameter in self.model.named_parameters():
            if name in state["moments"]:
                moments = state["moments"][name]
                first, second = (shard_like(moments[key], parameter) for key in _MOMENTS)
                self._optimizer.moments[parameter] = first, second
        self._optimizer.num_updates = state["updates"]
        self.position = Position(**state["position"])
        gradient = state["gradient"]
        self._num_dropout_shards = math.lcm(
            self._num_dropout_shards, gradient["num_dropout_shards"]
        )
        self._max_tokens = min(self._max_tokens, gradient["max_tokens"] or self._max_tokens)
        if gradient["loss_scale"] is not None:
            self._loss_scale = LossScale(**gradient["loss_scale"])
        self.overflows = gradient["overflows"]
        self.out_of_memory = gradient["out_of_memory"]


def _derive_seed(*numbers: int) -> int:
    """Return a seed in which every bit depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
