"""The result of a check as a page, and as a JUnit file for build servers."""

from pathlib import Path
from xml.etree import ElementTree as ET  # to write only

from tfm.applications.check.suite import CheckResult
from tfm.disk.files import write_text
from tfm.metrics.page import PageLine, write_page
from tfm.reporting import printable


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
    write_page(path, title, note, lines, table=result.table(), language=language)


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
