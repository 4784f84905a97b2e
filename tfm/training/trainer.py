"""The training step: forward, backward and update of one batch."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfm.backends.selection import training_backend
from tfm.config import RunConfig
from tfm.dataset.augmentation import Augmentation
from tfm.dataset.batching import Batcher
from tfm.dataset.parallel import Integers, ParallelDataset
from tfm.disk.tensor_file import count, record_from
from tfm.machine.background import read_ahead
from tfm.machine.compute import Compute, ComputeThreads
from tfm.machine.group import Group
from tfm.model.build import Model, build_model, freeze
from tfm.model.cost import Cost
from tfm.training.accumulation import GradientAccumulation, Poll, StepBatch
from tfm.training.gradients import full_tensor, gradient_norm, is_sharded, local_part, shard_like
from tfm.training.loss import BatchLoss
from tfm.training.optimizer import Adam, LossScale, WeightAverage, learning_rate
from tfm.training.progress import (
    ControlFlags,
    DeviceClock,
    PendingStep,
    Position,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")  # names in checkpoints, as in torch


class Trainer:
    """Trains a model step by step, together with the other processes of its group.

    Weights, data order and dropout depend only on the seed, the step and the microbatch. So a run
    that is stopped and resumed computes the same steps, on any number of processes.

    The model is on the device of `compute`. `threads` are adapted between steps; None leaves
    torch's number of threads unchanged.

    Attributes:
        model: The model.
        position: The position of the run.
        batcher: Plans and builds the batches.
        accumulation: Computes the gradients.
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
        threads: ComputeThreads | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.model = model
        self.position = Position()
        self._run = run
        self._compute = compute
        self._cost = cost
        self._group = group or Group()
        self._threads = threads
        backend = training_backend(compute, run.training.kernels, compiles=run.training.compile)
        backend.install(model)
        freeze(model, run.optimizer.freeze)
        self.batcher = Batcher(
            dataset,
            run.batching,
            seed=run.training.seed,
            coarse_rows=backend.compiles,
            packed=backend.packs(model),
            group=self._group,
            augmentation=augmentation,
        )
        self.last_step = run.last_step(self.batcher.num_batches())
        loss = BatchLoss(
            model,
            label_smoothing=run.optimizer.label_smoothing,
            custom=run.optimizer.named().get("loss"),
            autocast=compute.autocast,
            compiles=backend.compiles,
        )
        self.accumulation = GradientAccumulation(
            loss,
            self.batcher,
            run,
            compute,
            cost=cost,
            backend=backend,
            group=self._group,
        )
        trained = self._trained_parameters().values()
        self._optimizer = Adam(trained, run.optimizer)
        self._average: WeightAverage | None = None
        if run.optimizer.ema is not None:
            self._average = WeightAverage(trained, run.optimizer.ema)
        is_fp16 = compute.dtype == torch.float16
        self._loss_scale = LossScale(compute.device, is_fp16=is_fp16)

    def batches(self) -> Iterator[StepBatch]:
        """Yield the batches after the current position, epoch after epoch, without end.

        A GPU computes a step while the next batch is built.
        """
        position, world = self.position, self._group.world
        planned = self.batcher.batches(position.epoch, position.examples)
        built: Iterator[StepBatch] = (
            self.build(indices, epoch=epoch) for epoch, indices in planned
        )
        if self._compute.device.type != "cpu":
            # On a CPU, a thread beside the step gained nothing, and slowed it down at times.
            built = read_ahead(built, joins=True)
        while True:
            self._group.heartbeat(
                f"step {position.step + 1}, its batch", waits=world.local_rank > 0
            )
            clock = DeviceClock(self._compute.device)
            clock.mark()
            yield replace(next(built), clock=clock)

    def build(self, indices: Integers, *, epoch: int = 1) -> StepBatch:
        """Build this process's microbatches of a step on its device."""
        return self.accumulation.build(indices, epoch=epoch)

    def fit_memory(self, batch: StepBatch) -> None:
        """Make microbatches as small as memory requires, before the first batch is computed."""
        self.accumulation.fit_memory(batch, later_bytes=self._optimizer.missing_bytes())

    def step(
        self, batch: StepBatch, *, poll: Poll = ControlFlags
    ) -> tuple[PendingStep | None, ControlFlags]:
        """Train on one batch.

        If memory runs out, all processes compute it again in smaller microbatches. Everything is
        launched without waiting for the device, which alone decides whether the update is skipped.
        `poll` returns the control flags of this process; it is called several times.

        Returns:
            The step, or None if a stop came in time to leave everything unchanged; and the flags,
            combined over all processes.
        """
        clock = batch.clock or DeviceClock(self._compute.device)
        clock.mark()
        if self._threads is not None:
            self._threads.adapt()
        self.model.train()
        source_lengths, target_lengths = self.batcher.lengths(batch.indices)
        num_tokens = int(target_lengths.sum())
        weight = self._loss_scale.weight(num_tokens)
        sums, flags = self.accumulation.compute(
            batch, weight, step=self.position.step + 1, poll=poll
        )
        if sums is None:
            return None, flags
        loss, nll = (sums / num_tokens).unbind()
        scale = self._loss_scale.value
        gradients = self._optimizer.gradients()
        norm = gradient_norm(gradients.values()) / scale
        skipped = (~(loss.isfinite() & norm.isfinite())).float()
        rate = learning_rate(self.position.step + 1, self._run, self.last_step)
        limit = self._run.optimizer.clip_norm
        grad_scale = scale * (norm / limit).clamp(min=1.0) if limit else scale
        is_scaled = limit or self._loss_scale.is_fp16
        self._optimizer.step(
            gradients, rate, grad_scale=grad_scale if is_scaled else None, found_inf=skipped
        )
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update(self._optimizer.num_updates, skipped)
        flops = self._cost.training_flops(source_lengths, target_lengths)
        self.position.advance(
            epoch=batch.epoch, num_pairs=len(batch.indices), num_tokens=num_tokens, flops=flops
        )
        pending = PendingStep(
            pairs=self.batcher.pairs(batch.indices),
            position=self.position,
            clock=clock,
            results=[loss, nll, norm, skipped, scale],
            other_fields={
                "num_tokens": num_tokens,
                "flops": flops,
                "learning_rate": rate,
                "text_pairs": self.batcher.num_pairs_by_text(batch.indices),
            },
        )
        self._loss_scale.update(skipped)
        return pending, flags

    def has_finite_weights(self) -> bool:
        """Return whether all weights are finite; all processes must call it together."""
        weights = map(local_part, self.model.parameters())
        is_finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
        return not self._group.largest([int(not is_finite)])[0]

    def difference_between_ranks(self) -> str | None:
        """Return which ranks and values differ from the others; None if all ranks are in lockstep.

        All processes must call it together. With `shard`, each weight exists once, so that only
        the position and the number of updates can be compared.
        """
        if self._group.is_alone:
            return None
        whole = {name: each for name, each in self.model.named_parameters() if not is_sharded(each)}
        found = {
            "its position in the data": str(self.position),
            "its number of updates": int(self._optimizer.num_updates),
            **dict(zip(whole, bit_sums(whole.values()), strict=True)),
        }
        difference = find_difference(self._group.gather(found))
        if difference is None:
            return None
        ranks, name = difference
        which = f"rank {ranks[0]} differs" if len(ranks) == 1 else f"ranks {ranks} differ"
        return f"{which} from the other ranks, first in {name}"

    def weights(self, *, keep: bool = True) -> dict[str, Tensor]:
        """Return the fp32 weights for validation and translation by name, each once.

        They are the moving average, if the run has one, or else the trained weights. All processes
        must call it together. Without `keep`, sharded weights have shape [0].
        """
        averages = self._averages
        return {
            name: full_tensor(averages.get(parameter, parameter), keep=keep)
            for name, parameter in self.model.named_parameters()
        }

    def full_model(self, vocab_sizes: tuple[int, int]) -> Model:
        """Return a model of these vocabularies with full, not sharded, `weights`, to validate."""
        is_sharded = self._run.training.shard and not self._group.is_alone
        if not is_sharded and self._average is None:
            return self.model
        self._group.heartbeat("gathering the weights", waits=True)
        model = build_model(self._run.model, self.weights(), vocab_sizes)
        return model.to(self._compute.device)

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}

    @property
    def _averages(self) -> Mapping[nn.Parameter, Tensor]:
        """The moving averages of trained parameters; empty if the run has none."""
        return {} if self._average is None else self._average.averages

    def state(self, *, keep: bool = True) -> dict[str, Any]:
        """Return the training state besides the weights; all processes must call it together.

        Without `keep`, sharded tensors are empty.
        """
        moments = {
            name: {
                key: full_tensor(moment, keep=keep)
                for key, moment in zip(_MOMENTS, self._optimizer.moments[parameter], strict=True)
            }
            for name, parameter in self._trained_parameters().items()
            if parameter in self._optimizer.moments
        }
        trained_weights = {  # `weights` returns their average
            name: full_tensor(parameter, keep=keep)
            for name, parameter in self._trained_parameters().items()
            if parameter in self._averages
        }
        accumulation = self.accumulation
        has_chosen = accumulation.out_of_memory or self._run.batching.max_tokens is None
        return {
            "moments": moments,
            "updates": int(self._optimizer.num_updates),
            "gradient": {
                "num_dropout_shards": accumulation.num_dropout_shards,
                "max_tokens": accumulation.max_tokens if has_chosen else None,
                "loss_scale": self._loss_scale.state(),
                "out_of_memory": accumulation.out_of_memory,
            },
            "position": asdict(self.position),
            "trained_weights": trained_weights,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a state that `state` returned; the model has the weights of `weights`."""
        trained, moments = self._trained_parameters(), state["moments"]
        if moments:  # none before the first step
            first, second = (
                _by_parameter(trained, {name: pair[key] for name, pair in moments.items()})
                for key in _MOMENTS
            )
            self._optimizer.moments = {each: (first[each], second[each]) for each in first}
        if self._average is not None:
            with torch.no_grad():
                for parameter, weight in _by_parameter(trained, state["trained_weights"]).items():
                    parameter.copy_(weight)
        self._optimizer.num_updates.fill_(count(state["updates"]))
        self.position = record_from(Position, state["position"])
        gradient, accumulation = state["gradient"], self.accumulation
        num_shards = count(gradient["num_dropout_shards"], at_least=1)
        accumulation.num_dropout_shards = math.lcm(accumulation.num_dropout_shards, num_shards)
        if gradient["max_tokens"] is not None:
            max_tokens = count(gradient["max_tokens"], at_least=1)
            accumulation.max_tokens = min(self._run.batching.max_tokens or max_tokens, max_tokens)
        self._loss_scale.load_state(gradient["loss_scale"])
        accumulation.out_of_memory = count(gradient["out_of_memory"])


def _by_parameter(
    parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> dict[nn.Parameter, Tensor]:
    """Return full tensors by parameter, sharded like it; raise ValueError if they do not fit."""
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if found != {name: (each.shape, torch.float32) for name, each in parameters.items()}:
        raise ValueError("it has tensors of another model")
    return {each: shard_like(tensors[name], each) for name, each in parameters.items()}


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Return a checksum of each fp32 tensor, of any shape: the sum of its bits as integers.

    The device is waited for once.
    """
    sums = [tensor.detach().view(torch.int32).sum() for tensor in tensors]
    return [int(each) for each in torch.stack(sums).tolist()] if sums else []


def find_difference(by_rank: Sequence[Mapping[str, object]]) -> tuple[list[int], str] | None:
    """Return the ranks that differ from most others, and the name of the first value that differs.

    Without a majority, the ranks that equal rank 0 count as right. None if all are equal.
    """
    for name in by_rank[0]:
        values = [str(found[name]) for found in by_rank]
        counts = Counter(values)  # in order of the ranks, so that ties are won by rank 0
        if len(counts) > 1:
            usual = max(counts, key=counts.__getitem__)
            return [rank for rank, value in enumerate(values) if value != usual], name
    return None
