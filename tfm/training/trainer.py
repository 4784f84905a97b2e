"""The training step: forward, backward and update of one batch."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfm.backends.selection import training_backend
from tfm.config import RunConfig
from tfm.data.background import read_ahead
from tfm.data.batching import DEFAULT_MAX_TOKENS, Batch, Batcher
from tfm.data.dataset import Integers, ParallelDataset
from tfm.device.compute import Compute, ComputeThreads, is_out_of_memory
from tfm.distributed.group import Group
from tfm.errors import TrainingError
from tfm.folders.tensor_file import count, record_from
from tfm.model.build import Model, freeze
from tfm.model.cost import Cost
from tfm.model.transformer import Transformer
from tfm.training.gradients import (
    build_gradients,
    full_tensor,
    gradient_norm,
    is_sharded,
    local_part,
    shard_like,
)
from tfm.training.lockstep import bit_sums, find_difference
from tfm.training.loss import BatchLoss
from tfm.training.optimizer import Adam, LossScale, WeightAverage, learning_rate
from tfm.training.progress import (
    ControlFlags,
    DeviceClock,
    Heartbeat,
    PendingStep,
    Position,
    no_heartbeat,
)

Poll = Callable[[], ControlFlags]

_UNLIMITED = 1 << 30  # tokens of a microbatch
_MOMENTS = ("exp_avg", "exp_avg_sq")  # names in checkpoints, as in torch


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of a step, with the microbatches that this process computes."""

    indices: Integers  # of all pairs
    epoch: int  # counted from 1
    max_tokens: int  # of a microbatch
    microbatches: list[Integers]  # of all processes
    own: list[tuple[int, Batch]]  # by index among all, on the device
    clock: DeviceClock | None = None  # with a mark where the wait for the batch began


def max_microbatch_tokens(
    run: RunConfig, device: torch.device, *, num_processes: int, compiles: bool = False
) -> int:
    """Return the maximum number of tokens per side of a microbatch of a new run, with padding.

    If it is not set, a GPU computes large microbatches, and all of its packed batch at once if the
    layers are compiled, until it runs out of memory. Several processes could not recover from that.
    """
    batching = run.batching
    if batching.max_tokens is not None:
        return batching.max_tokens
    if device.type == "cpu" or num_processes > 1:
        return DEFAULT_MAX_TOKENS
    return _UNLIMITED if compiles else max(DEFAULT_MAX_TOKENS, batching.batch_tokens)


class Trainer:
    """Trains a model step by step, together with the other processes of its group.

    Weights, data order and dropout depend only on the seed, the step and the microbatch. So a run
    that is stopped and resumed computes the same steps, on any number of processes.

    The model is on the device of `compute`. `heartbeat` is called at the start of each phase of a
    step. `threads` are adapted between steps; None leaves torch's number of threads unchanged.

    Attributes:
        max_tokens: The maximum number of tokens per side of a microbatch; halved when a device runs
            out of memory.
        out_of_memory: How often that happened.
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
        self.model = model
        self.position = Position()
        self.out_of_memory = 0
        self._run = run
        self._compute = compute
        self._cost = cost
        self._group = group or Group()
        self._heartbeat = heartbeat
        self._threads = threads
        self._backend = backend = training_backend(
            compute, run.training.kernels, compiles=run.training.compile
        )
        backend.install(model)
        freeze(model, run.optimizer.freeze)
        self.batcher = Batcher(
            dataset,
            run.batching,
            seed=run.training.seed,
            coarse_rows=backend.compiles,
            group=self._group,
        )
        loss = BatchLoss(
            model,
            label_smoothing=run.optimizer.label_smoothing,
            autocast=compute.autocast,
            compiles=backend.compiles,
        )
        example = self._batch(np.zeros(1, dtype=np.int64))
        self._gradients = build_gradients(loss, self._group, example, shard=run.training.shard)
        trained = self._trained_parameters().values()
        self._optimizer = Adam(trained, run.optimizer)
        self._average: WeightAverage | None = None
        if run.optimizer.ema is not None:
            self._average = WeightAverage(trained, run.optimizer.ema)
        is_fp16 = compute.dtype == torch.float16
        self._loss_scale = LossScale(compute.device, is_fp16=is_fp16)
        num_processes = self._group.world.size
        self.max_tokens = max_microbatch_tokens(
            run,
            compute.device,
            num_processes=num_processes,
            compiles=backend.compiles and isinstance(model, Transformer),
        )
        # A multiple of the processes, so that all compute equally many microbatches.
        self._num_dropout_shards = math.lcm(run.batching.num_dropout_shards, num_processes)

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
            self._heartbeat(f"step {position.step + 1}, its batch", waits=world.local_rank > 0)
            clock = DeviceClock(self._compute.device)
            clock.mark()
            yield replace(next(built), clock=clock)

    def build(self, indices: Integers, *, epoch: int = 1) -> StepBatch:
        """Build this process's microbatches of a step on its device."""
        max_tokens, world = self.max_tokens, self._group.world
        microbatches = self.batcher.split(
            indices, max_tokens=max_tokens, multiple_of=self._num_dropout_shards
        )
        num_rounds = -(-len(microbatches) // world.size)
        numbers = range(world.rank, num_rounds * world.size, world.size)
        return StepBatch(
            indices=indices,
            epoch=epoch,
            max_tokens=max_tokens,
            microbatches=microbatches,
            # A rank without a microbatch of its own computes the first one with weight 0.
            own=[
                (number, self._batch(microbatches[number if number < len(microbatches) else 0]))
                for number in numbers
            ],
        )

    def step(
        self, batch: StepBatch, *, poll: Poll = ControlFlags
    ) -> tuple[PendingStep | None, ControlFlags]:
        """Train on one batch.

        A single process computes it again in smaller microbatches if memory runs out. It launches
        everything without waiting for its device, which alone decides whether the update is
        skipped. `poll` returns the control flags of this process; it is called several times.

        Returns:
            The step, or None if a stop came in time to leave everything unchanged; and the flags,
            combined over all processes.

        Raises:
            TrainingError: There is too little memory: for a single sentence pair, or for a
                microbatch of one of several processes.
            LostPeersError: Other processes cannot be reached.
        """
        clock = batch.clock or DeviceClock(self._compute.device)
        clock.mark()
        if self._threads is not None:
            self._threads.adapt()
        self.model.train()
        source_lengths, target_lengths = self.batcher.lengths(batch.indices)
        num_tokens = int(target_lengths.sum())
        weight = self._loss_scale.weight(num_tokens)
        while True:
            if batch.max_tokens != self.max_tokens:
                batch = self.build(batch.indices, epoch=batch.epoch)
            try:
                sums, flags = self._accumulate_gradient(batch, weight, poll)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self._group.is_alone:
                    raise self._too_large(batch) from error
            self._use_smaller_microbatches(batch)
        if sums is None:
            return None, flags
        loss, nll = (sums / num_tokens).unbind()
        scale = self._loss_scale.value
        gradients = self._optimizer.gradients()
        norm = gradient_norm(gradients.values()) / scale
        skipped = (~(loss.isfinite() & norm.isfinite())).float()
        rate = learning_rate(self.position.step + 1, self._run)
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

    def _accumulate_gradient(
        self, batch: StepBatch, weight: float | Tensor, poll: Poll
    ) -> tuple[Tensor | None, ControlFlags]:
        """Compute the gradient of a batch's weighted loss; each rank takes some microbatches.

        Ranks sum their gradients in the last microbatch, so all must take part in it: before it,
        they exchange their flags. Return the [2] sums of loss and negative log-likelihood over all
        ranks, or None after a stop; and the combined flags.
        """
        self._optimizer.zero_grad()  # of an attempt that failed
        group, step = self._group, self.position.step + 1
        sums = torch.zeros(2, dtype=torch.float64, device=self._compute.device)
        *others, last = range(len(batch.own))
        for number in others:
            if poll().stop and not self._gradients.always_waits:
                break
            sums += self._forward_backward(batch, number, weight)
        self._heartbeat("the exchange of control flags", waits=True)
        stop, *requests = group.largest([*map(int, astuple(poll()))])
        flags = ControlFlags(stop, *map(bool, requests))
        if flags.stop:
            return None, flags
        sums += self._forward_backward(batch, last, weight)
        self._heartbeat(f"step {step}, sums of losses", waits=True)
        return group.sum(sums), flags

    def _forward_backward(self, batch: StepBatch, number: int, weight: float | Tensor) -> Tensor:
        """Add the gradient of a microbatch's weighted loss to the batch's gradient.

        Return [2] sums of loss and negative log-likelihood.
        """
        index, microbatch = batch.own[number]
        is_real, is_last = index < len(batch.microbatches), number == len(batch.own) - 1
        always_waits, step = self._gradients.always_waits, self.position.step + 1
        phase = f"microbatch {index + 1} of {len(batch.microbatches)}"
        self._heartbeat(f"step {step}, {phase}", waits=always_waits)
        with self._gradients.accumulate(is_last=is_last):
            self._backend.seed(_derive_seed(self._run.training.seed, step, index))
            loss, nll = self._gradients.loss(microbatch)
            self._heartbeat(f"step {step}, gradient of {phase}", waits=is_last or always_waits)
            (loss * (weight if is_real else 0.0)).backward()  # type: ignore[no-untyped-call]
        sums = torch.stack([loss.detach(), nll])
        return sums if is_real else torch.zeros_like(sums)

    def _batch(self, indices: Integers) -> Batch:
        return self.batcher.batch(indices).to(self._compute.device)

    def _use_smaller_microbatches(self, batch: StepBatch) -> None:
        """Split this and later batches into microbatches of half the size, if that is possible."""
        sizes = [self._num_padded(pairs) for pairs in batch.microbatches if len(pairs) > 1]
        if not sizes:
            raise self._too_large(batch)
        self.max_tokens = max(sizes) // 2
        self.out_of_memory += 1
        self._optimizer.zero_grad()
        torch.cuda.empty_cache()  # so that blocks of other sizes fit

    def _too_large(self, batch: StepBatch) -> TrainingError:
        rank = "" if self._group.is_alone else f"rank {self._group.world.rank}, "
        return TrainingError(
            f"{rank}step {self.position.step + 1}: out of memory with a microbatch of "
            f"{max(map(self._num_padded, batch.microbatches)):,} tokens per side: use a smaller "
            "--max-tokens, or a smaller model"
        )

    def _num_padded(self, indices: Integers) -> int:
        """Return the number of tokens of the longer side of a microbatch, with padding."""
        return len(indices) * self.batcher.longest(indices)

    def has_finite_weights(self) -> bool:
        """Return whether all weights are finite; all processes must call it together."""
        weights = map(local_part, self.model.parameters())
        is_finite = torch.stack([weight.isfinite().all() for weight in weights]).all()
        return not self._group.largest([int(not is_finite)])[0]

    def difference_between_ranks(self) -> str | None:
        """Return which ranks differ from the others and in what; None if all are in lockstep.

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
        must call it together. Without `keep`, sharded ones have shape [0].
        """
        averages = self._averages
        return {
            name: full_tensor(averages.get(parameter, parameter), keep=keep)
            for name, parameter in self.model.named_parameters()
        }

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
        trained_weights = {  # of which `weights` returns the average
            name: full_tensor(parameter, keep=keep)
            for name, parameter in self._trained_parameters().items()
            if parameter in self._averages
        }
        has_chosen = self.out_of_memory or self._run.batching.max_tokens is None
        return {
            "moments": moments,
            "updates": int(self._optimizer.num_updates),
            "gradient": {
                "num_dropout_shards": self._num_dropout_shards,
                "max_tokens": self.max_tokens if has_chosen else None,
                "loss_scale": self._loss_scale.state(),
                "out_of_memory": self.out_of_memory,
            },
            "position": asdict(self.position),
            "trained_weights": trained_weights,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a state that `state` returned; the model has the weights of `weights`.

        Raises:
            LookupError, TypeError, ValueError, ArithmeticError: It is not the state of this model.
        """
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
        gradient = state["gradient"]
        num_shards = count(gradient["num_dropout_shards"], at_least=1)
        self._num_dropout_shards = math.lcm(self._num_dropout_shards, num_shards)
        if gradient["max_tokens"] is not None:
            max_tokens = count(gradient["max_tokens"], at_least=1)
            self.max_tokens = min(self._run.batching.max_tokens or max_tokens, max_tokens)
        self._loss_scale.load_state(gradient["loss_scale"])
        self.out_of_memory = count(gradient["out_of_memory"])


def _by_parameter(
    parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> dict[nn.Parameter, Tensor]:
    """Return full tensors by parameter, sharded like it; raise ValueError if they do not fit."""
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if found != {name: (each.shape, torch.float32) for name, each in parameters.items()}:
        raise ValueError("it has tensors of another model")
    return {each: shard_like(tensors[name], each) for name, each in parameters.items()}


def _derive_seed(*numbers: int) -> int:
    """Return a seed in which every bit depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
