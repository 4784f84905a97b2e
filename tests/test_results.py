"""The results page has the figures of the lab book and the examples, and commands that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "results.md").read_text(encoding="utf-8")
SOURCES = "".join(
    (ROOT / name / "README.md").read_text(encoding="utf-8")
    for name in ("benchmarks", "examples/multi30k", "examples/wmt14")
)
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!-)", line)]
COMMANDS = [" ".join(each.split()) for each in re.findall(r"`(python\s+benchmarks/[^`]*)`", PAGE)]

_FIGURE = re.compile(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?![\w-])")


def figures(text):
    return set(_FIGURE.findall(text))


@pytest.mark.parametrize("row", ROWS)
def test_each_figure_of_the_results_is_measured_elsewhere(row):
    measured = re.sub(r"`[^`]*`|\d{4}-\d\d-\d\d", "", row)
    assert figures(measured) <= figures(SOURCES)


def test_the_results_have_rows_and_commands():
    assert len(ROWS) > 60
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", COMMANDS)
def test_each_benchmark_of_the_results_exists_with_its_flags(command):
    own_flags = command.partition(" -- ")[0]
    script = ROOT / command.split()[1]
    source = "".join(path.read_text(encoding="utf-8") for path in script.parent.glob("*.py"))
    assert script.is_file()
    for flag in re.findall(r"(?<!\S)--([a-z][a-z-]+)", own_flags):
        assert f"--{flag}" in source or re.search(rf"\b{flag.replace('-', '_')}\b", source), flag


def test_rows_of_a_simulated_cpu_say_so():
    assert not [row for row in ROWS if "AVX2" in row and "simulated" not in row]
