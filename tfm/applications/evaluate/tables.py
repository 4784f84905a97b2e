"""The scores of several models on several test sets, as tables of each metric."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfm.disk.files import write_text
from tfm.metrics.metric import MetricScore
from tfm.pages import render
from tfm.reporting import Result
from tfm.table import Table

_SIGNIFICANT = 0.05  # p-values below it are marked
_NOTE = (
    "± is half the 95 % confidence interval; p is of the difference to the first model, by the "
    f"paired bootstrap; * is below {_SIGNIFICANT}"
)


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The scores of all models on a test set.

    Attributes:
        name: The name that the user gave.
        num_lines: Number of its segments.
        scores: {model: its scores, in the order of the metrics}.
        outputs: {model: the file of its translations}.
        extra: Further figures about the set, by name.
    """

    name: str
    num_lines: int
    scores: Mapping[str, Sequence[MetricScore]]
    outputs: Mapping[str, str]
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Result):
    """The scores of models, the first of which is the baseline, on test sets."""

    models: Sequence[str]
    sets: Sequence[SetResult]

    def tables(self) -> list[Table]:
        """Return a table for each metric: a row for each model, a column for each set.

        Further figures about the sets are in a last table, if there are any.
        """
        names = [f"{each.name} ({each.num_lines:,})" for each in self.sets]
        tables = []
        scores = [each.scores[self.models[0]] for each in self.sets]
        for label in dict.fromkeys(score.label for of_set in scores for score in of_set):
            rows = [
                [model, *(_cell(each.scores[model], label) for each in self.sets)]
                for model in self.models
            ]
            tables.append(Table(rows, [label, *names], is_numeric=True))
        if extra := dict.fromkeys(name for each in self.sets for name in each.extra):
            rows = [[name, *(f"{s.extra.get(name, '')}" for s in self.sets)] for name in extra]
            tables.append(Table(rows, ["test sets", *names], is_numeric=True))
        return tables

    def lines(self, columns: int | None) -> Iterator[str | Table]:
        """Yield the tables, with empty lines between them."""
        first, *others = self.tables()
        yield first
        for table in others:
            yield from ("", table)

    def notes(self) -> list[str]:
        """Return the signature of each metric, with the sets that it holds for, and the legend."""
        names: dict[tuple[str, str], list[str]] = {}
        for each in self.sets:
            for score in each.scores[self.models[0]]:
                names.setdefault((score.label, score.signature), []).append(each.name)
        signatures = [f"{label}, {', '.join(of)}: {text}" for (label, text), of in names.items()]
        return [*signatures, _NOTE]

    def write_page(self, path: Path) -> None:
        """Write the tables and notes as an HTML page, without scripts."""
        page = "applications/evaluate/page.html"
        write_text(path, render(page, title="Evaluation", tables=self.tables(), notes=self.notes()))


def _cell(scores: Sequence[MetricScore], label: str) -> str:
    """Return the score of a metric with its interval and p-value, as far as it has them."""
    by_label = {score.label: score for score in scores}
    if (score := by_label.get(label)) is None:
        return ""
    text, compared = f"{score.value:.{score.decimals}f}", score.comparison
    if compared is not None and compared.interval is not None:
        text += f" ± {compared.interval:.{score.decimals}f}"
    if compared is not None and compared.p_value is not None:
        text += f", p = {compared.p_value:.4f}{'*' * (compared.p_value < _SIGNIFICANT)}"
    return text
