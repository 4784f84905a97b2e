"""The position of a run, the metrics of its steps, and the control flags of its processes."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tfm.training.loss import perplexity


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The metrics of one step.

    Attributes:
        step: Number of the step, counted from 1.
        epoch: Number of the epoch, counted from 1.
        loss: Smoothed cross-entropy in nats per target token.
        nll: Plain negative log-likelihood in nats per target token.
        num_tokens: Number of target tokens.
        flops: Floating-point operations, forward and backward, without padding.
        gradient_norm: Norm of the gradient before clipping.
        seconds: Wall time of the step.
        skipped: Whether the weights stayed unchanged, because loss or gradient was not finite.
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
    skipped: bool = False


@dataclass
class Position:
    """The position of a run; the counts are totals since its start.

    Attributes:
        step: Number of steps, including skipped ones.
        epoch: The current epoch, counted from 1.
        examples: Number of sentence pairs done in this epoch.
        pairs: Number of sentence pairs seen.
        tokens: Number of target tokens seen.
        skipped: Number of skipped steps, whose loss or gradient was not finite.
    """

    step: int = 0
    epoch: int = 1
    examples: int = 0
    pairs: int = 0
    tokens: int = 0
    flops: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0

    def advance(self, report: StepReport, *, num_pairs: int) -> None:
        """Count a step over N sentence pairs."""
        self.step = report.step
        self.examples += num_pairs
        self.pairs += num_pairs
        self.tokens += report.num_tokens
        self.flops += report.flops
        self.skipped += report.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0


class MetricsWindow:
    """The metrics of the steps since the last line of metrics.jsonl."""

    def __init__(self, reports: Iterable[StepReport] = ()) -> None:
        self._reports = list(reports)

    def state(self) -> list[dict[str, Any]]:
        """Return the reports as plain values, for a checkpoint."""
        return [asdict(report) for report in self._reports]

    def add(self, report: StepReport) -> None:
        """Add the report of a step."""
        self._reports.append(report)

    def figures(self) -> str:
        """Return the text beside the progress bar, whose end narrow terminals cut off.

        Means leave out skipped steps.
        """
        newest, loss, nll = self._reports[-1], self._mean("loss"), self._mean("nll")
        return (
            f"loss {loss:.3f} · {self._rate('num_tokens'):,.0f} tok/s · "
            f"ppl {perplexity(nll):.2f} · epoch {newest.epoch} · lr {newest.learning_rate:.1e}"
        )

    def record(self) -> dict[str, Any]:
        """Return the record of these steps for metrics.jsonl."""
        newest = self._reports[-1]
        return {
            "kind": "train",
            "step": newest.step,
            "epoch": newest.epoch,
            "loss": _finite(self._mean("loss")),
            "perplexity": _finite(perplexity(self._mean("nll"))),
            "learning_rate": newest.learning_rate,
            "gradient_norm": _finite(newest.gradient_norm),
            "skipped_steps": sum(report.skipped for report in self._reports),
            "target_tokens_per_second": self._rate("num_tokens"),
            "flops_per_step": self._sum("flops") / len(self._reports),
            "flops_per_second": self._rate("flops"),
        }

    def _sum(self, name: str) -> float:
        return float(sum(getattr(report, name) for report in self._reports))

    def _mean(self, name: str) -> float:
        """Return the mean over target tokens; NaN if all steps were skipped."""
        done = [report for report in self._reports if not report.skipped]
        total = sum(getattr(report, name) * report.num_tokens for report in done)
        num_tokens = sum(report.num_tokens for report in done)
        return float(total / num_tokens) if done else math.nan

    def _rate(self, name: str) -> float:
        return self._sum(name) / self._sum("seconds")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has neither NaN nor infinity


@dataclass(frozen=True)
class ControlFlags:
    """Requests of one process to all; combined over all ranks by maximum.

    Attributes:
        stop: Number of the signal that asks to stop before the step is done; 0 without one.
        checkpoint: Whether a checkpoint is due after this step.
        retry: Whether to retry saving a checkpoint.
        end: Whether this step is the last.
    """

    stop: int = 0
    checkpoint: bool = False
    retry: bool = False
    end: bool = False


class Heartbeat(Protocol):
    """Tells the watchdog that the main thread makes progress."""

    def __call__(self, phase: str, *, waits: bool = False) -> None:
        """Report the start of a phase, and whether it waits for other processes."""


def no_heartbeat(phase: str, *, waits: bool = False) -> None:
    """Ignore heartbeats."""
