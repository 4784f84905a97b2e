"""The result of a check as a table, as a page, and as a JUnit file for build servers."""

from pathlib import Path
from xml.etree import ElementTree as ET  # to write only

from tfm.applications.check.suite import CheckResult
from tfm.disk.files import write_text
from tfm.metrics.page import PageLine, write_page
from tfm.reporting import printable
from tfm.table import Table


def table(result: CheckResult) -> Table:
    """Return the cases, measures and result of each row of a check."""
    by_number = sorted(result.rows, key=lambda row: -len(row.measures))
    names = dict.fromkeys(name for row in by_number for name in row.measures)
    rows = []
    for row in result.rows:
        values = {name: _shown(name, row.measures.get(name)) for name in names}
        verdict = "FAILED" if row.failures else "skipped" if row.skipped else "ok"
        rows.append({"row": row.name, "cases": f"{row.num_cases:,}", **values, "result": verdict})
    return Table.of(rows)


def _shown(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if name == "p_value" else f"{value:.1f}"


def write_check_page(path: Path, result: CheckResult, language: str) -> None:
    """Write the rows and their worst translations, in a language, as one HTML file."""
    lines = []
    for row in result.rows:
        for each in row.worst:
            texts = [
                (result.model, each.output, {"chrF": each.chrf, "confidence": each.confidence})
            ]
            if each.baseline is not None:
                texts.append((result.baseline or "", each.baseline, {}))
            label = f"{row.name} ({row.about}){''.join(f', {fault}' for fault in each.faults)}"
            lines.append(PageLine(label, each.source, each.reference, texts))
    note, title = f"The worst of {result.num_lines:,} lines.", f"Check of {result.model}"
    write_page(path, title, note, lines, table=table(result), language=language)


def write_junit(path: Path, result: CheckResult) -> None:
    """Write rows as the test cases of a JUnit file."""
    suite = ET.Element("testsuite", name=printable(f"tfm check {result.model}"))
    suite.set("tests", str(len(result.rows)))
    suite.set("failures", str(sum(bool(row.failures) for row in result.rows)))
    suite.set("skipped", str(sum(row.skipped is not None for row in result.rows)))
    for row in result.rows:
        case = ET.SubElement(suite, "testcase", classname="tfm.check", name=row.name)
        for kind, text in (("failure", ", ".join(row.failures)), ("skipped", row.skipped)):
            if text:
                ET.SubElement(case, kind, message=text)
    write_text(path, f"{ET.tostring(suite, encoding='unicode', xml_declaration=True)}\n")
