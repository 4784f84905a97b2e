"""The share of translations that are just the reference."""

from collections.abc import Sequence

from tfm.config import ScoreConfig
from tfm.metrics.metric import Comparison, MetricScore


def exact_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """The percentage of lines that equal a reference, but for space at their ends.

    Args:
        hypotheses: One line for each segment.
        references: One or more lists of lines, each as long as the hypotheses.
        config: Says whether case counts.
        baseline: Other lines for the same segments, scored likewise; there is no test.
    """
    case = "lc" if config.lowercase else "mixed"
    return MetricScore(
        name="exact",
        label="exact",
        value=_percent_exact(hypotheses, references, config),
        signature=f"nrefs:{len(references)}|case:{case}",
        comparison=Comparison(baseline=_percent_exact(baseline, references, config))
        if baseline is not None
        else None,
    )


def _percent_exact(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], config: ScoreConfig
) -> float:
    def normalized(text: str) -> str:
        return text.strip().lower() if config.lowercase else text.strip()

    matches = sum(
        normalized(hypothesis) in map(normalized, candidates)
        for hypothesis, *candidates in zip(hypotheses, *references, strict=True)
    )
    return 100 * matches / len(hypotheses)
