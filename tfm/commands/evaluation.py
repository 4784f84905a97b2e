"""The result of `tfm evaluate`: systems by test sets, in words, tables, a page and JSON."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfm.commands.score import ScoreResult
from tfm.metrics.metric import Comparison, MetricScore
from tfm.metrics.page import PageLine, write_template
from tfm.reporting import Result
from tfm.table import Table, fold

_SIGNIFICANT = 0.05  # p-values from here on are no evidence of a difference
_LEGEND = (
    "± is half the 95 % confidence interval; the difference is to the first system, with p by the "
    "paired bootstrap, which covers the choice of the lines, not the chance of "
    "training. Of several seeds, ± is the standard deviation, and p, by Welch's t-test, "
    "covers the chance of training, not the choice of the lines"
)


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """The scores of all systems on a test set.

    Attributes:
        name: The name that the user gave.
        results: {system: its scores, the file of its translations, and what it has seen}.
        groups: {group: the mean scores of its systems, or the scores of its only system}.
        differing: {first system of another group: the lines that differ most from the first system
            of all, from those it translates better to those it translates worse}.
    """

    name: str
    results: Mapping[str, ScoreResult]
    groups: Mapping[str, Sequence[MetricScore]]
    differing: Mapping[str, Sequence[PageLine]]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Result):
    """The scores of systems on test sets; the first system is the baseline.

    Attributes:
        systems: {model, or name of files: when it was written; of a model, its step and seed, and
            the state of its run, "running" if it still trains}.
        groups: {group: its systems, which differ only by their seeds}; any other system is a group
            by its own name.
        sets: The results on each set.
    """

    systems: Mapping[str, Mapping[str, str]]
    groups: Mapping[str, Sequence[str]]
    sets: Sequence[SetResult]

    def answer(self) -> list[str]:
        """Return a sentence for each group but the first, by the first metric."""
        first, *others = self.groups
        return [
            f"Compared with {self._called(first)}, {self._called(group)} is "
            + ", ".join(_verdict(each.groups[group][0], each.name) for each in self.sets)
            for group in others
        ]

    def tables(self) -> list[Table]:
        """Return a table for each metric, of lines not seen in training, and of the systems."""
        first = next(iter(self.systems))
        columns = [f"{each.name} ({each.results[first].num_lines:,})" for each in self.sets]
        scores = {
            self._called(group): [each.groups[group] for each in self.sets]
            for group, names in self.groups.items()
            if len(names) > 1
        }
        scores |= {name: [each.results[name].scores for each in self.sets] for name in self.systems}
        tables = []
        for label in dict.fromkeys(x.label for of_set in scores[first] for x in of_set):
            rows = [[name, *(_cell(each, label) for each in of)] for name, of in scores.items()]
            tables.append(Table(rows, [label, *columns], is_numeric=True))
        seen = [(name, [each.results[name].seen for each in self.sets]) for name in self.systems]
        if rows := [[name, *(x.unseen if x else "" for x in of)] for name, of in seen if any(of)]:
            tables.append(Table(rows, ["lines not seen in training", *columns], is_numeric=True))
        facts = [{"system": name, **each} for name, each in self.systems.items()]
        return [*tables, Table.of(facts)]

    def lines(self, columns: int | None) -> Iterator[str | Table]:
        """Yield the answer and the tables, with empty lines between them."""
        for each in self.answer():
            yield from (*fold(each, columns or math.inf), "")
        for table in self.tables():
            yield from (table, "")

    def notes(self) -> list[str]:
        """Return the legend, and each signature with its sets, and its systems if others differ.

        Only the signature of the baseline lacks the seed and size of the bootstrap.
        """
        names: dict[tuple[str, str], list[str]] = {}
        signatures: dict[tuple[str, str], str] = {}
        for each in self.sets:
            of_systems: dict[tuple[str, str], list[str]] = {}
            for system, result in each.results.items():
                for score in result.scores:
                    key = score.label, re.sub(r"bs:\d+\|seed:\d+\|", "", score.signature)
                    signatures[key] = score.signature
                    of_systems.setdefault(key, []).append(system)
            for key, systems in of_systems.items():
                of = "" if len(systems) == len(each.results) else f" ({', '.join(systems)})"
                names.setdefault(key, []).append(f"{each.name}{of}")
        return [
            _LEGEND,
            *(f"{key[0]}, {', '.join(of)}: {signatures[key]}" for key, of in names.items()),
        ]

    def record(self) -> dict[str, Any]:
        """Return what --json prints, with the answer."""
        return {"answer": self.answer(), **asdict(self)}

    def write_page(self, path: Path, language: str) -> None:
        """Write all as an HTML page without scripts; `language` is that of the translations."""
        title = " and ".join(map(self._called, self.groups))
        write_template("commands/evaluation.html", path, title, language, evaluation=self)

    def _called(self, group: str) -> str:
        """Return the name of a group with the number of its seeds."""
        number = len(self.groups[group])
        return f"{group} ({number} seeds)" if number > 1 else group


def _verdict(score: MetricScore, of_set: str) -> str:
    """Return in words how a score on a set compares with that of the baseline."""
    compared = score.comparison or Comparison(baseline=score.value)
    difference, p = score.value - compared.baseline, compared.p_value
    tested = f"on {of_set} (" + (f"p {p:.4f})" if p is not None else "untested)")
    if not difference or (p or 0) >= _SIGNIFICANT:
        return f"level {tested}"
    word = "higher" if difference > 0 else "lower"
    if p is not None and score.name != "command":
        word = "better" if (difference > 0) != (score.name == "ter") else "worse"
    return f"{word} by {abs(difference):.{score.decimals}f} {score.label} {tested}"


def _cell(scores: Sequence[MetricScore], label: str) -> str:
    """Return the score of a metric, its difference to the baseline and p, as far as it has them."""
    found = [each for each in scores if each.label == label]
    return ", ".join(part for each in found for part in (each.shown, each.difference) if part)
