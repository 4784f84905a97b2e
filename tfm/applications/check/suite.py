"""A check: the rows of a model, perhaps beside a baseline."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET  # to write only

from tfm.applications.check.measures import Translated, failures, measured, summary, words
from tfm.applications.check.rows import ROWS, cases
from tfm.dataset.manifest import Manifest
from tfm.disk.files import write_text
from tfm.errors import DataError
from tfm.folders.model_folder import ModelFolder, NoSplitError
from tfm.metrics.page import PageLine, PageText, write_page
from tfm.metrics.tokenizers import bleu_tokenizer
from tfm.reporting import Progress, Result, printable
from tfm.table import Table
from tfm.text.lines import read_lines, read_pairs
from tfm.text.segments import REFERENCE, SOURCE
from tfm.text.tags import split_tag
from tfm.translation.steps import Output

_NUM_WORST = 10

Translate = Callable[[Sequence[str]], list[Output]]
Pairs = list[tuple[str, str]]  # sources and references


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row of a check: its measures, exceeded thresholds, and the worst translations."""

    name: str
    about: str
    num_cases: int
    measures: Mapping[str, float] = field(default_factory=dict)
    failures: Sequence[str] = ()
    skipped: str | None = None  # why it was not translated
    worst: Sequence[Translated] = ()


@dataclass(frozen=True, kw_only=True)
class CheckResult(Result):
    """The result of a check; `protects` is whether addresses and the like were copied."""

    model: str
    baseline: str | None
    num_lines: int
    protects: bool
    passed: bool
    rows: Sequence[RowResult]

    def table(self) -> Table:
        """Return the cases, measures and result of each row."""
        by_number = sorted(self.rows, key=lambda row: -len(row.measures))
        names = dict.fromkeys(name for row in by_number for name in row.measures)
        rows = []
        for row in self.rows:
            values = [_shown(name, row.measures.get(name)) for name in names]
            verdict = "FAILED" if row.failures else "skipped" if row.skipped else "ok"
            rows.append([row.name, f"{row.num_cases:,}", *values, verdict])
        return Table(rows, ["row", "cases", *names, "result"])

    def write_page(self, path: Path, language: str) -> None:
        """Write the rows and their worst translations, in a language, as one HTML file."""
        lines = []
        for row in self.rows:
            for each in row.worst:
                scores = {"chrF": each.chrf, "confidence": each.confidence}
                texts: list[PageText] = [(self.model, each.output, scores)]
                if each.baseline is not None:
                    texts.append((self.baseline or "", each.baseline, {}))
                label = f"{row.name} ({row.about}){''.join(f', {fault}' for fault in each.faults)}"
                lines.append(PageLine(label, each.source, each.reference, texts))
        note, title = f"The worst of {self.num_lines:,} lines.", f"Check of {self.model}"
        write_page(path, title, note, lines, table=self.table(), language=language)

    def write_junit(self, path: Path) -> None:
        """Write rows as the test cases of a JUnit file, for build servers."""
        suite = ET.Element("testsuite", name=printable(f"tfm check {self.model}"))
        suite.set("tests", str(len(self.rows)))
        suite.set("failures", str(sum(bool(row.failures) for row in self.rows)))
        suite.set("skipped", str(sum(row.skipped is not None for row in self.rows)))
        for row in self.rows:
            case = ET.SubElement(suite, "testcase", classname="tfm.check", name=row.name)
            for kind, text in (("failure", ", ".join(row.failures)), ("skipped", row.skipped)):
                if text:
                    ET.SubElement(case, kind, message=text)
        write_text(path, f"{ET.tostring(suite, encoding='unicode', xml_declaration=True)}\n")

    def lines(self, columns: int | None) -> list[Table]:
        """Return the table."""
        return [self.table()]

    def notes(self) -> Iterator[str]:
        """Yield why rows failed or were skipped, and the number of failed rows."""
        for row in self.rows:
            if row.failures or row.skipped:
                reasons = ", ".join(row.failures) or row.skipped
                yield f"check: {row.name} ({row.about}): {reasons}"
        num_failed = sum(bool(row.failures) for row in self.rows)
        were = "were" if self.protects else "were not"
        yield f"check: {num_failed} of {len(self.rows)} rows failed; placeholders {were} protected"


def _shown(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if name == "p_value" else f"{value:.1f}"


def read_test_set(
    folder: ModelFolder, files: Sequence[Path] | None, num_lines: int
) -> tuple[str | None, Pairs]:
    """Return the first lines of two files, or of the test or validation set of a model.

    They come with their tag. Empty lines are left out, and lines with another tag than the first.
    """
    advice = "give text with --source and --reference"
    if files is None:
        with suppress(NoSplitError):
            files = folder.split("test", advice=advice)
        files = files or folder.split("valid", advice=advice)
    pairs: Pairs = []
    first = None
    tags = folder.vocabulary.source.tags()
    source_path, reference_path = files
    parts = SOURCE, REFERENCE
    for source, reference in read_pairs(source_path, reference_path, strict=True, parts=parts):
        tag, line = split_tag(source.decode(), tags)
        if line.strip() and reference.strip() and first in (None, tag):
            first = tag
            pairs.append((line, reference.decode()))
        if len(pairs) == num_lines:
            break
    if not pairs:
        raise DataError(f"{source_path} has no lines with references: {advice}")
    return first or None, pairs


def training_target(folder: ModelFolder) -> Path | None:
    """Return the target side of the training text; None if it is gone, or has no spaced words."""
    with suppress(NoSplitError):
        manifest = Manifest.load(folder.split("valid", advice="")[0].parent)
        path = manifest.text_path("train", manifest.target)
        return path if path.is_file() and bleu_tokenizer(manifest.target) == "13a" else None
    return None


def check_rows(
    translate: Translate,
    pairs: Pairs,
    language: str,
    *,
    baseline: Translate | None = None,
    training: Path | None = None,
) -> list[RowResult]:
    """Translate lines with the change of each row, and measure the rows.

    Args:
        translate: Returns the translation of each source.
        pairs: The lines and their references.
        language: The language of the lines.
        baseline: Translates with the model to compare with.
        training: The target side of the training text: a word that is not in it is unknown.
    """
    lines, references = zip(*pairs, strict=True)
    of_rows = [cases(row, lines, language) for row in ROWS]
    found: list[list[Output]] = []
    others: list[list[str | None]] = []
    with Progress("check", total=sum(map(len, of_rows)), unit="translations") as bar:
        for of_row in of_rows:
            sources = [case.source for case in of_row]
            found.append(translate(sources))
            theirs = [] if baseline is None else baseline(sources)
            others.append([each.text for each in theirs] or [None] * len(sources))
            bar.update(len(of_row))
    unknown = None
    if training is not None:
        unknown = words(each.text for outputs in found for each in outputs)
        for line in read_lines(training, strict=False):
            unknown -= words([line.decode(errors="replace")])
    times_longer = sum(map(len, references)) / sum(map(len, lines))
    plain = [each.text for each in found[0]]
    results = []
    for row, of_row, outputs, other in zip(ROWS, of_rows, found, others, strict=True):
        translated = [
            measured(*each, references, times_longer, unknown)
            for each in zip(of_row, outputs, other, strict=True)
        ]
        unchanged = [case.of(plain) for case in of_row if case.lines and row is not ROWS[0]]
        measures = summary(translated, unchanged)
        reason = "too few lines" if len(lines) < row.group else "it changes none of the lines"
        results.append(
            RowResult(
                name=row.name,
                about=row.about,
                num_cases=len(of_row),
                measures=measures,
                failures=failures(measures, row.limits),
                skipped=None if of_row else reason,
                worst=sorted(translated, key=_goodness)[:_NUM_WORST],
            )
        )
    return results


def _goodness(each: Translated) -> tuple[int, float]:
    return -len(each.faults), each.chrf or 0.0
