"""What a metric says of translations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricName = Literal["bleu", "paper-bleu", "chrf", "ter", "exact", "bracket-f1"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A score beside that of a baseline.

    Attributes:
        p_value: How often chance alone makes such a difference, by paired bootstrap resampling;
            None for a metric without that test.
        mean: Mean score over the bootstrap samples.
        interval: Half the width of the interval that holds 95 % of them.
    """

    baseline: float
    p_value: float | None = None
    mean: float | None = None
    interval: float | None = None


@dataclass(frozen=True, kw_only=True)
class MetricScore:
    """A score that others can compute again.

    Attributes:
        label: The name to print: "BLEU", "chrF2", "chrF2++", "TER", …
        value: The score, in points or percent, from 0 to 100; TER may be more, and less is better.
        signature: All that decides the score, as sacreBLEU writes it.
        details: Figures that belong to the score, by name.
        note: What to know before the score is compared with others.
    """

    name: MetricName
    label: str
    value: float
    signature: str
    comparison: Comparison | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None
