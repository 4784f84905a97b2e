"""The scores of several models on several test sets, as tables of each metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template

from tfm.metrics.metric import MetricScore
from tfm.storage.files import write_text

SIGNIFICANT = 0.05  # p-values below it are marked
NOTE = (
    "± is half the 95 % confidence interval; p is of the difference to the first model, by the "
    f"paired bootstrap; * is below {SIGNIFICANT}"
)

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "*": r"$^{*}$"}
)


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The scores of all models on a test set.

    Attributes:
        name: The name that the user gave.
        num_lines: Number of its segments.
        scores: {model: its scores, in the order of the metrics}.
        outputs: {model: the file of its translations}.
        extra: Further figures about the set, by what they are.
    """

    name: str
    num_lines: int
    scores: Mapping[str, Sequence[MetricScore]]
    outputs: Mapping[str, str]
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of models, the first of which is the baseline, on test sets."""

    models: Sequence[str]
    sets: Sequence[SetResult]

    def tables(self) -> dict[str, list[list[str]]]:
        """Return rows of text for each metric: a row for each model, a column for each set."""
        labels = {score.label: None for each in self.sets for score in each.scores[self.models[0]]}
        titles = ["", *(f"{each.name} ({each.num_lines:,})" for each in self.sets)]
        tables = {
            label: [titles, *([model, *self._cells(model, label)] for model in self.models)]
            for label in labels
        }
        if any(each.extra for each in self.sets):
            names = dict.fromkeys(name for each in self.sets for name in each.extra)
            tables["test sets"] = [
                titles,
                *(
                    [n, *(f"{s.extra[n]:g}" if n in s.extra else "" for s in self.sets)]
                    for n in names
                ),
            ]
        return tables

    def notes(self) -> list[str]:
        """Return the signature of each metric, with the sets that it holds for, and the legend."""
        names: dict[tuple[str, str], list[str]] = {}
        for each in self.sets:
            for score in each.scores[self.models[0]]:
                names.setdefault((score.label, score.signature), []).append(each.name)
        signatures = [f"{label}, {', '.join(of)}: {text}" for (label, text), of in names.items()]
        return [*signatures, NOTE]

    def _cells(self, model: str, label: str) -> list[str]:
        scores = [{s.label: s for s in each.scores[model]}.get(label) for each in self.sets]
        return ["" if score is None else _cell(score) for score in scores]


def _cell(score: MetricScore) -> str:
    decimals, compared = score.decimals, score.comparison
    text = f"{score.value:.{decimals}f}"
    if compared is not None and compared.interval is not None:
        text += f" ± {compared.interval:.{decimals}f}"
    if compared is not None and compared.p_value is not None:
        text += f", p = {compared.p_value:.4f}{'*' * (compared.p_value < SIGNIFICANT)}"
    return text


def markdown(evaluation: Evaluation) -> str:
    """Return the tables in Markdown."""
    parts = []
    for label, rows in evaluation.tables().items():
        lines = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows]
        lines.insert(1, " | ".join(["---", *["---:"] * (len(rows[0]) - 1)]))
        parts.append("\n".join([f"**{label}**", "", *(f"| {line} |" for line in lines)]))
    return "\n\n".join([*parts, _notes(evaluation, "- {}")])


def latex(evaluation: Evaluation) -> str:
    """Return the tables in LaTeX, for the package booktabs."""
    parts = []
    for label, rows in evaluation.tables().items():
        titles, *lines = [
            " & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows
        ]
        head = [rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule"]
        body = [titles, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
        parts.append("\n".join([f"% {label}", *head, *body]))
    return "\n\n".join([*parts, _notes(evaluation, "% {}")])


def write_page(path: Path, evaluation: Evaluation) -> None:
    """Write the tables as an HTML page, without scripts, with the style of reports."""
    from tfm.training.report import render_table  # here, because it loads matplotlib

    tables = (
        render_table([[label, *rows[0][1:]], *rows[1:]])
        for label, rows in evaluation.tables().items()
    )
    notes = render_table([["signatures and notes"], *([n] for n in evaluation.notes())])
    page = (resources.files("tfm.training") / "report_page.html").read_text(encoding="utf-8")
    empty = dict.fromkeys(("charts", "texts", "samples", "others", "newest"), "")
    filled = {"title": "Evaluation", "state": "".join(tables), "settings": notes, **empty}
    write_text(path, Template(page).substitute(filled))


def _notes(evaluation: Evaluation, form: str) -> str:
    return "\n".join(form.format(note) for note in evaluation.notes())
