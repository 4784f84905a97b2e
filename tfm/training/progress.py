"""The position of a run, the metrics of its steps, and the control flags of its processes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tfm.config import TrainingConfig
from tfm.config.values import Measured
from tfm.dataset.parallel import Integers
from tfm.folders.model_info import ranking_metric
from tfm.reporting import format_number
from tfm.training.loss import perplexity


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The metrics of one step; losses are in nats per target token."""

    step: int  # counted from 1
    epoch: int  # counted from 1
    loss: Measured  # smoothed cross-entropy
    nll: Measured  # plain negative log-likelihood
    num_tokens: int  # of the target
    flops: int  # forward and backward, without padding
    gradient_norm: Measured  # before clipping
    learning_rate: float
    seconds: float  # wall time, waiting for data included
    waiting_seconds: float = 0.0  # of the device, for the batch
    skipped: bool = False  # weights stayed unchanged, because loss or gradient was not finite
    loss_scale: float = 1.0  # of fp16
    text_pairs: tuple[int, ...] = ()  # pairs of each training text, if there are several

    @property
    def overflowed(self) -> bool:
        """Whether the gradient exceeded the range of fp16, which a smaller loss scale avoids."""
        return self.skipped and math.isfinite(self.loss) and self.loss_scale > 1


@dataclass
class Position:
    """The position of a run; the counts are totals since its start."""

    step: int = 0  # including skipped steps
    epoch: int = 1
    examples: int = 0  # sentence pairs done in this epoch
    pairs: int = 0  # sentence pairs seen
    tokens: int = 0  # target tokens seen
    flops: int = 0

    def advance(self, *, epoch: int, num_pairs: int, num_tokens: int, flops: int) -> None:
        """Count a step over N sentence pairs of an epoch."""
        if epoch != self.epoch:
            self.epoch, self.examples = epoch, 0
        self.step += 1
        self.examples += num_pairs
        self.pairs += num_pairs
        self.tokens += num_tokens
        self.flops += flops


@dataclass
class RunState:
    """The progress of a run, besides the state of its trainer; saved in every checkpoint."""

    best: Measured | None = None  # quality at the best validation so far
    validations_since_best: int = 0
    skipped_in_a_row: int = 0  # steps, without overflows of fp16
    skipped_steps: int = 0  # in total
    nll: Measured | None = None  # in the newest full line of training, in nats per target token
    is_validation_due: bool = False  # a signal interrupted the last validation
    minutes: float = 0.0  # wall time before the run was last resumed
    capacity_flops: float = 0.0  # time × peak FLOP/s of the devices (the paper's estimate, §6.1)

    def count_validation(self, quality: float | None) -> None:
        """Count a validation, whose quality is None if the metric command has failed."""
        if quality is not None and (self.best is None or quality > self.best):
            self.best, self.validations_since_best = quality, 0
        elif quality is not None:
            self.validations_since_best += 1

    def limit_reached(
        self, limits: TrainingConfig, position: Position, num_pairs: int
    ) -> str | None:
        """Return the steps, epochs of N pairs, or patience that the run has reached, as a flag."""
        epochs_done = position.epoch - (position.examples < num_pairs)
        if self.is_validation_due:
            return None
        if position.step >= limits.max_steps:
            return f"--max-steps {limits.max_steps}"
        if epochs_done >= (limits.max_epochs or math.inf):
            return f"--max-epochs {limits.max_epochs}"
        if self.validations_since_best >= (limits.patience or math.inf):
            metric = ranking_metric(limits.best_metric, self.best)
            number = limits.patience
            return f"--patience {number}, {number} validations without a better {metric}"
        return None


class DeviceClock:
    """Times consecutive steps without synchronizing a GPU between them.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Mark the end of one step and the beginning of the next."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Wait for the last mark on the device, then return the seconds between marks."""
        if not self._events:
            return [end - start for start, end in pairwise(self._times)]
        self._events[-1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(self._events)]


class PendingStep:
    """A step that the device may still be computing.

    Args:
        pairs: [B] numbers of its sentence pairs.
        position: The run's position after the step.
        clock: Has a mark where the step begins, and if available, a mark before where the wait for
            the batch began; the end of the step is marked here.
        results: Loss, negative log-likelihood, norm of the gradient, whether the update was
            skipped, and loss scale: scalars on the device.
        other_fields: The other fields of its report.
    """

    def __init__(
        self,
        *,
        pairs: Integers,
        position: Position,
        clock: DeviceClock,
        results: Sequence[Tensor],
        other_fields: Mapping[str, Any],
    ) -> None:
        self.pairs = pairs
        self.position = replace(position)
        self._clock = clock
        self._other_fields = other_fields
        self._results = copy_to_host(torch.stack([each.double() for each in results]))
        clock.mark()

    def report(self) -> StepReport:
        """Wait until the step is done, and return its report."""
        *waiting, computing = self._clock.seconds()
        loss, nll, norm, skipped, scale = self._results.tolist()
        return StepReport(
            loss=loss,
            nll=nll,
            gradient_norm=norm,
            skipped=bool(skipped),
            loss_scale=scale,
            seconds=sum(waiting) + computing,
            waiting_seconds=sum(waiting),
            step=self.position.step,
            epoch=self.position.epoch,
            **self._other_fields,
        )


def copy_to_host(x: Tensor) -> Tensor:
    """Copy a tensor of any shape to pinned memory, which is filled while the host continues."""
    return x.to("cpu", non_blocking=True)


def progress_statistics(reports: Sequence[StepReport]) -> list[str]:
    """Return the statistics beside the progress bar, the most important first.

    Everywhere, the loss that users see is the cross-entropy without label smoothing, the logarithm
    of the perplexity. Means leave out skipped steps.
    """
    newest, nll = reports[-1], mean_nll(reports)
    return [
        f"loss {format_number(nll, decimals=3)}",
        f"{_rate(reports, 'num_tokens'):,.0f} tok/s",
        f"epoch {newest.epoch}",
        f"ppl {format_number(perplexity(nll), decimals=2)}",
        f"lr {newest.learning_rate:.1e}",
        f"data wait {_waiting_share(reports):.0%}",
    ]


def metrics_record(reports: Sequence[StepReport]) -> dict[str, Any]:
    """Return the record of these steps for metrics.jsonl; training minimizes the smoothed loss."""
    newest = reports[-1]
    by_text = zip(*(report.text_pairs for report in reports), strict=True)
    return {
        "kind": "train",
        "step": newest.step,
        "epoch": newest.epoch,
        "loss": mean_nll(reports),
        "smoothed_loss": _mean(reports, "loss"),
        "perplexity": perplexity(mean_nll(reports)),
        "learning_rate": newest.learning_rate,
        "gradient_norm": newest.gradient_norm,
        "skipped_steps": sum(report.skipped for report in reports),
        "target_tokens_per_second": _rate(reports, "num_tokens"),
        "data_waiting_share": _waiting_share(reports),
        "flops_per_step": sum(report.flops for report in reports) / len(reports),
        "flops_per_second": _rate(reports, "flops"),
        **({"text_pairs": [sum(pairs) for pairs in by_text]} if newest.text_pairs else {}),
    }


def mean_nll(reports: Sequence[StepReport]) -> float:
    """Return the negative log-likelihood in nats per token; NaN if all steps were skipped."""
    return _mean(reports, "nll")


def _mean(reports: Sequence[StepReport], name: str) -> float:
    """Return the mean over target tokens; NaN if all steps were skipped."""
    done = [report for report in reports if not report.skipped]
    total = sum(getattr(report, name) * report.num_tokens for report in done)
    return float(total / sum(report.num_tokens for report in done)) if done else math.nan


def _waiting_share(reports: Sequence[StepReport]) -> float:
    """Return the share of the time that the device waited for data."""
    waiting = sum(report.waiting_seconds for report in reports)
    return waiting / sum(report.seconds for report in reports)


def _rate(reports: Sequence[StepReport], name: str) -> float:
    total = sum(getattr(report, name) for report in reports)
    return float(total / sum(report.seconds for report in reports))


@dataclass(frozen=True)
class ControlFlags:
    """Requests of one process to all; combined over all ranks by maximum."""

    stop: int = 0  # number of the signal that asks to stop before the step is done
    checkpoint: bool = False  # a checkpoint is due after this step
    retry: bool = False  # retry saving a checkpoint
    end: bool = False  # this step is the last
    out_of_memory: bool = False  # all must compute smaller microbatches
