"""The gradient of one batch: in parts, by all processes, again if memory or fp16 does not do."""

import math
from collections.abc import Callable
from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfm.backends.plain import Backend
from tfm.config import RunConfig
from tfm.data.batching import Batch, Batcher
from tfm.data.dataset import Rows
from tfm.device.compute import Compute, is_out_of_memory, release_memory
from tfm.distributed.group import Group
from tfm.errors import TrainingError
from tfm.training.gradients import gradient_norm, gradients_of, scale_gradient
from tfm.training.precision import LossScale
from tfm.training.progress import Beat, Wishes


class BatchGradient:
    """Computes the gradient of batches.

    Draws of dropout belong to a part of a batch, whichever process computes it.

    Attributes:
        agreed: What all processes wished besides, when they last agreed.
        overflows: Times that a batch was computed again, as fp16 overflowed.
        out_of_memory: Times that a batch was computed again in smaller parts.

    Args:
        loss: Maps a part to its loss; its parameters get the gradient.
        batcher: Of the batches.
        run: All settings.
        compute: Device and arithmetic.
        backend: What the model is computed with; they draw dropout.
        group: The processes that compute together.
        beat: Told where it stands, so that a process which stalls is noticed.
    """

    def __init__(
        self,
        loss: nn.Module,
        batcher: Batcher,
        run: RunConfig,
        compute: Compute,
        *,
        backend: Backend,
        group: Group,
        beat: Beat,
    ) -> None:
        self.agreed = Wishes()
        self.overflows = 0
        self.out_of_memory = 0
        self._batcher = batcher
        self._compute = compute
        self._backend = backend
        self._group = group
        self._beat = beat
        self._seed = run.training.seed
        self._max_tokens = run.batching.max_tokens
        # So many processes more or less compute the same parts.
        self._shares = math.lcm(run.batching.shares, group.world.size)
        self._loss_scale = LossScale() if compute.dtype == torch.float16 else None
        self._all_go_on: bool | None = None  # with the batch, if that was agreed on
        self._gradients = gradients_of(loss, group, self._example(), shard=run.training.shard)
        self.parameters = list(loss.parameters())

    def compute(
        self, rows: Rows, *, step: int, wishes: Callable[[], Wishes]
    ) -> tuple[float, float, float] | None:
        """Compute the gradient of the mean loss of a batch's target tokens.

        Args:
            rows: The sentence pairs of the batch.
            step: Number of the step.
            wishes: Asked, more than once, what is to be done besides.

        Returns:
            The mean loss and negative log-likelihood of a target token, and the gradient's norm;
            None if a stop was agreed on before, when there is no gradient.

        Raises:
            TrainingError: Memory is too small for a single sentence pair.
            LostPeersError: The other processes are gone.
        """
        num_tokens = int(self._batcher.lengths(rows)[1].sum())
        compute = self._compute
        while True:
            scale = self._loss_scale if compute.dtype == torch.float16 else None
            factor = 1.0 if scale is None else scale.value
            self._all_go_on = None
            weight = self._gradients.divisor * factor / num_tokens
            sums = self._attempt(rows, step, weight, compute, wishes)
            if sums is None:
                self._forget()
                if self.agreed.stop:
                    return None
                self._use_smaller_parts(rows, step)
                continue
            loss, nll = (float(total) / num_tokens for total in sums)
            norm = gradient_norm(self.parameters) / factor
            if scale is None:
                return loss, nll, norm
            if math.isfinite(loss) and math.isfinite(norm):
                scale_gradient(self.parameters, 1 / factor)
                scale.note_good_step()
                return loss, nll, norm
            self.overflows += 1
            self._forget()
            # A loss that is not finite overflowed before it was scaled.
            if not math.isfinite(loss) or not scale.halve():
                compute = replace(compute, dtype=torch.float32)

    def state(self) -> dict[str, Any]:
        """What is needed to go on as if nothing had happened."""
        return {
            "shares": self._shares,
            "max_tokens": self._max_tokens if self.out_of_memory else None,
            "loss_scale": None if self._loss_scale is None else asdict(self._loss_scale),
            "overflows": self.overflows,
            "out_of_memory": self.out_of_memory,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        self._shares = math.lcm(self._shares, state["shares"])
        self._max_tokens = min(self._max_tokens, state["max_tokens"] or self._max_tokens)
        if self._loss_scale is not None and state["loss_scale"] is not None:
            self._loss_scale = LossScale(**state["loss_scale"])
        self.overflows = state["overflows"]
        self.out_of_memory = state["out_of_memory"]

    def _attempt(
        self,
        rows: Rows,
        step: int,
        weight: float,
        compute: Compute,
        wishes: Callable[[], Wishes],
    ) -> Tensor | None:
        """Compute the gradient of a batch, unless a process cannot or must not go on.

        Args:
            rows: The batch.
            step: Number of the step.
            weight: What the sum of its loss is multiplied by.
            compute: Device and arithmetic.
            wishes: What is to be done besides.

        Returns:
            [2] sums of loss and negative log-likelihood over all processes; None if a stop was
            agreed on or a process ran out of memory, when the gradient means nothing.
        """
        parts = self._parts(rows)
        # Loss, negative log-likelihood, processes that ran out of memory.
        sums = torch.zeros(3, dtype=torch.float64, device=compute.device)
        ran_out = False
        try:
            self._compute_parts(parts, step, weight, compute, wishes, sums)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not self._gradients.can_give_up:
                raise self._too_large(parts, step) from error
            ran_out = True
        if self._all_go_on is None:
            self._agree(wishes(), out_of_memory=ran_out)
        if not self._all_go_on:
            return None
        if ran_out:
            sums[2] = 1
            self._gradients.release()
        self._beat(f"step {step}, sums", waits=True)
        if self._group.sum(sums)[2]:
            self._gradients.reset(self._example())
            return None
        return sums[:2]

    def _compute_parts(
        self,
        parts: list[Rows],
        step: int,
        weight: float,
        compute: Compute,
        wishes: Callable[[], Wishes],
        sums: Tensor,
    ) -> None:
        """Compute this process' parts, and add their losses to the sums.

        All processes agree before the last part of each, for in that they share their gradients,
        and none may leave it.
        """
        world = self._group.world
        num_rounds = -(-len(parts) // world.size)
        for number in range(num_rounds):
            # Where each has a share of the weights, all compute a part together.
            waits = not self._gradients.can_give_up
            self._beat(f"step {step}, part {number + 1} of {num_rounds}", waits=waits)
            if self._gradients.can_give_up and wishes().stop:
                return
            index = number * world.size + world.rank
            # In a batch of few sentences, a process without a part keeps the others company.
            is_real = index < len(parts)
            part = self._batcher.part(parts[index if is_real else 0]).to(compute.device)
            self._backend.seed(_mixed_seed(self._seed, step, index))
            is_last = number == num_rounds - 1
            if is_last and not self._agree(wishes(), out_of_memory=False):
                return
            self._beat(f"step {step}, part {number + 1} of {num_rounds}", waits=waits)
            with self._gradients.sharing(is_last=is_last):
                with compute.autocast():
                    loss, nll = self._gradients.loss(part)
                self._beat(
                    f"step {step}, gradient of part {number + 1} of {num_rounds}",
                    waits=waits or is_last,
                )
                (loss * (weight if is_real else 0.0)).backward()  # type: ignore[no-untyped-call]
            if is_real:
                sums[:2] += torch.stack([loss.detach(), nll])

    def _agree(self, wishes: Wishes, *, out_of_memory: bool) -> bool:
        """Hear what all processes wish; returns whether they all go on with the step."""
        self._beat("the agreement on a step", waits=True)
        *told, failed = self._group.largest([*map(int, astuple(wishes)), int(out_of_memory)])
        self.agreed = Wishes(told[0], *map(bool, told[1:]))
        self._all_go_on = not (self.agreed.stop or failed)
        return self._all_go_on

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _example(self) -> Batch:
        """A batch of one pair."""
        return self._batcher.part(np.zeros(1, dtype=np.int64)).to(self._compute.device)

    def _parts(self, rows: Rows) -> list[Rows]:
        return self._batcher.split(rows, max_tokens=self._max_tokens, multiple_of=self._shares)

    def _use_smaller_parts(self, rows: Rows, step: int) -> None:
        """After a process ran out of memory, split batches further from here on.

        Raises:
            TrainingError: They cannot be split further.
        """
        parts = self._parts(rows)
        sizes = [len(part) * self._batcher.longest(part) for part in parts if len(part) > 1]
        if not sizes:
            raise self._too_large(parts, step)
        self._max_tokens = max(sizes) // 2
        self.out_of_memory += 1
        release_memory(self._compute.device)

    def _too_large(self, parts: list[Rows], step: int) -> TrainingError:
        tokens = max(len(part) * self._batcher.longest(part) for part in parts)
        return TrainingError(
            f"step {step}: out of memory with a part of {tokens:,} tokens a "
            "side: use a smaller --max-tokens, or a smaller model"
        )


def _mixed_seed(*numbers: int) -> int:
    """A seed in whose every bit all the numbers count."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
