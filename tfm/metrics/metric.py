"""The result of a metric."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricName = Literal["bleu", "paper-bleu", "chrf", "ter", "exact", "bracket-f1", "command"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The score of a baseline, and a paired bootstrap test of the difference to it.

    Metrics without that test have only the baseline's score.
    """

    baseline: float
    p_value: float | None = None  # also None if the scores are equal: no difference to test
    mean: float | None = None  # over the bootstrap samples
    interval: float | None = None  # half the width of their 95 % confidence interval


@dataclass(frozen=True, kw_only=True)
class MetricScore:
    """The score of a metric, with the signature that makes it reproducible."""

    name: MetricName
    label: str  # to print: "BLEU", "chrF2", "chrF2++", "TER", …, or a program
    value: float  # 0 to 100; TER may be higher, and lower is better; programs have other scales
    signature: str  # all settings that influence the score, in sacreBLEU's notation
    comparison: Comparison | None = None
    details: Mapping[str, float] = field(default_factory=dict)  # such as precision and recall
    note: str | None = None  # a warning about comparing the score with others

    @property
    def decimals(self) -> int:
        """The number of decimals to print; the scores of many programs are from 0 to 1."""
        return 4 if self.name == "command" else 2

    def notes(self) -> Iterator[str]:
        """Yield what is printed below the score: details, the comparison, and the warning."""
        details = (
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.2f}"
            for name, value in self.details.items()
        )
        yield from filter(None, (", ".join(details), self._compared(), self.note))

    def _compared(self) -> str:
        """Return the difference to a baseline, and its test, in words."""
        compared, decimals = self.comparison, self.decimals
        if compared is None:
            return ""
        difference = f"{self.value - compared.baseline:+.{decimals}f}"
        text = f"baseline {compared.baseline:.{decimals}f}, difference {difference}"
        if compared.p_value is not None:
            text += f", p = {compared.p_value:.4f} (paired bootstrap)"
        elif self.value == compared.baseline:
            text += ", no difference to test"
        if compared.mean is not None and compared.interval is not None:
            interval = f"{compared.mean:.{decimals}f} ± {compared.interval:.{decimals}f}"
            text += f", 95 % of samples in {interval}"
        return text
