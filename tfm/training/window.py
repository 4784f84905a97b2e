"""The figures of some steps, as one line."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tfm.training.loss import perplexity
from tfm.training.progress import StepReport


class Window:
    """The figures of the steps since the last line of metrics.jsonl.

    Args:
        reports: Those that a run which is resumed had counted in.
    """

    def __init__(self, reports: Iterable[StepReport] = ()) -> None:
        self._reports = list(reports)

    def state(self) -> list[dict[str, Any]]:
        """The figures as plain values, so that a resumed run goes on with them."""
        return [asdict(report) for report in self._reports]

    def add(self, report: StepReport) -> None:
        """Count a step in."""
        self._reports.append(report)

    def figures(self) -> str:
        """Where training stands, for the bar; steps that were skipped do not count in means."""
        newest, loss, nll = self._reports[-1], self._mean("loss"), self._mean("nll")
        return (
            f"epoch {newest.epoch} · loss {loss:.3f} · ppl {perplexity(nll):.2f} · "
            f"lr {newest.learning_rate:.1e} · {self._rate('num_tokens'):,.0f} tok/s"
        )

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl says of these steps."""
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
        """Mean over target tokens; not a number if all steps were skipped."""
        done = [report for report in self._reports if not report.skipped]
        total = sum(getattr(report, name) * report.num_tokens for report in done)
        num_tokens = sum(report.num_tokens for report in done)
        return float(total / num_tokens) if done else math.nan

    def _rate(self, name: str) -> float:
        return self._sum(name) / self._sum("seconds")


def _finite(value: float) -> float | None:
    """A number as JSON can say it."""
    return value if math.isfinite(value) else None
