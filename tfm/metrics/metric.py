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


@dataclass(frozen=True, kw_only=True)
class MetricScore:
    """The score of a metric, with the signature that makes it reproducible."""

    name: MetricName
    label: str  # to print: "BLEU", "chrF2", "chrF2++", "TER", …, or a program
    value: float  # 0 to 100; TER may be higher, and lower is better; programs have other scales
    signature: str  # all settings that influence the score, in sacreBLEU's notation
    mean: float | None = None  # over bootstrap samples of the lines, if they were drawn
    interval: float | None = None  # half the width of their 95 % confidence interval
    deviation: float | None = None  # of the scores of several seeds, whose mean is the value
    comparison: Comparison | None = None
    details: Mapping[str, float] = field(default_factory=dict)  # such as precision and recall
    note: str | None = None  # a warning about comparing the score with others

    @property
    def decimals(self) -> int:
        """The number of decimals to print; the scores of many programs are from 0 to 1."""
        return 4 if self.name == "command" else 2

    @property
    def shown(self) -> str:
        """The value, with its deviation or interval if it has one."""
        numbers = (self.value, self.interval if self.deviation is None else self.deviation)
        return " ± ".join(f"{each:.{self.decimals}f}" for each in numbers if each is not None)

    @property
    def beside_baseline(self) -> str:
        """The label and the value, and the value of the baseline if there is one."""
        text = f"{self.label} = {self.value:.{self.decimals}f}"
        other = None if self.comparison is None else f"{self.comparison.baseline:.{self.decimals}f}"
        return text if other is None else f"{text} (baseline {other})"

    @property
    def difference(self) -> str:
        """The difference to the baseline, with p if it was tested; "" without a baseline."""
        if (compared := self.comparison) is None:
            return ""
        text = f"{self.value - compared.baseline:+.{self.decimals}f}"
        return text if compared.p_value is None else f"{text}, p = {compared.p_value:.4f}"

    def notes(self) -> Iterator[str]:
        """Yield what is printed below the score: details, the comparison, and the warning."""
        details = (
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.2f}"
            for name, value in self.details.items()
        )
        yield from filter(None, (", ".join(details), self._compared(), self.note))

    def _compared(self) -> str:
        """Return the difference to a baseline, and its test, in words."""
        if (compared := self.comparison) is None:
            return ""
        text = f"baseline {compared.baseline:.{self.decimals}f}, difference {self.difference}"
        if compared.p_value is not None:
            return f"{text} (paired bootstrap)"
        return text + ", no difference to test" * (self.value == compared.baseline)
