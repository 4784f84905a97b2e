"""How far a run has come, the figures of its steps, and what processes tell each other."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tfm.training.loss import perplexity


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The figures of one step.

    Attributes:
        step: Its number, counted from 1.
        epoch: Its epoch, counted from 1.
        loss: Smoothed cross-entropy in nats per target token.
        nll: Plain negative log-likelihood in nats per target token.
        num_tokens: Target tokens.
        flops: Operations of the model, forward and backward, on tokens that are not padding.
        gradient_norm: Before clipping.
        learning_rate: Of this step.
        seconds: Wall time it took.
        skipped: Whether it changed nothing, because loss or gradient was not finite.
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
    """How far a run has come.

    Attributes:
        step: Steps done, including skipped ones.
        epoch: The current epoch, counted from 1.
        examples: Sentence pairs done in this epoch.
        pairs: Sentence pairs seen.
        tokens: Target tokens seen.
        flops: Operations done on them.
        skipped: Steps that changed nothing, because loss or gradient was not finite.
        skipped_in_a_row: The number of skipped steps since the last good one.
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
        """Count a step in, of so many sentence pairs."""
        self.step = report.step
        self.examples += num_pairs
        self.pairs += num_pairs
        self.tokens += report.num_tokens
        self.flops += report.flops
        self.skipped += report.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0


class MetricsWindow:
    """The figures of the steps since the last line of metrics.jsonl.

    Args:
        reports: Those that a resumed run had counted in.
    """

    def __init__(self, reports: Iterable[StepReport] = ()) -> None:
        self._reports = list(reports)

    def state(self) -> list[dict[str, Any]]:
        """Return the figures as plain values, for a checkpoint."""
        return [asdict(report) for report in self._reports]

    def add(self, report: StepReport) -> None:
        """Count a step in."""
        self._reports.append(report)

    def figures(self) -> str:
        """Return the figures for the progress bar; skipped steps do not count in means."""
        newest, loss, nll = self._reports[-1], self._mean("loss"), self._mean("nll")
        return (
            f"epoch {newest.epoch} · loss {loss:.3f} · ppl {perplexity(nll):.2f} · "
            f"lr {newest.learning_rate:.1e} · {self._rate('num_tokens'):,.0f} tok/s"
        )

    def record(self) -> dict[str, Any]:
        """Return the line of these steps in metrics.jsonl."""
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
        """Return the mean over target tokens; not a number if all steps were skipped."""
        done = [report for report in self._reports if not report.skipped]
        total = sum(getattr(report, name) * report.num_tokens for report in done)
        num_tokens = sum(report.num_tokens for report in done)
        return float(total / num_tokens) if done else math.nan

    def _rate(self, name: str) -> float:
        return self._sum(name) / self._sum("seconds")


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class ControlFlags:
    """What a process asks all of them to do; flags are combined over ranks by maximum.

    Attributes:
        stop: Number of the signal that asks to stop before the step is done; 0 if there is none.
        checkpoint: Whether a checkpoint is due after this step.
        retry: Whether to try again to save a checkpoint.
        end: Whether this step is the last.
    """

    stop: int = 0
    checkpoint: bool = False
    retry: bool = False
    end: bool = False


class Heartbeat(Protocol):
    """Tells the watchdog that the main thread makes progress."""

    def __call__(self, phase: str, *, waits: bool = False) -> None:
        """Report the start of a phase; `waits` if it waits for other processes."""


def no_heartbeat(phase: str, *, waits: bool = False) -> None:
    """Tell nobody."""
