"""The script that compares two versions of tfm."""

import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "freeze.py"


@pytest.fixture
def freeze(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("freeze")


def found(freeze, before, after):
    return [(each.keys, each.before, each.after) for each in freeze.differences(before, after)]


def test_equal_observations_have_no_differences(freeze):
    observed = {"a": [1.5, math.nan, {"text": "one\ntwo"}], "b": None}
    assert found(freeze, observed, {"b": None, "a": [1.5, math.nan, {"text": "one\ntwo"}]}) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.5]}, (("loss", "2"), "2.0", "2.5")),
        ({"n": 1}, {"n": 1.0}, (("n",), "1", "1.0")),
        ({"n": "1"}, {"n": 1}, (("n",), "1", "1")),
        ({"text": "a\nb\nc"}, {"text": "a\nx\nb\nc"}, (("text",), "b", "x")),
        ({"n": "1"}, {"n": ["1"]}, (("n",), "1", "['1']")),
        ({"list": [1, 2]}, {"list": [1]}, (("list",), "2", "(missing)")),
        ({}, {"new": {"a": 1}}, (("new",), "(missing)", "{'a': 1}")),
        ({"gone": "a"}, {}, (("gone",), "a", "(missing)")),
    ],
)
def test_the_first_value_that_differs_is_named(freeze, before, after, expected):
    assert found(freeze, before, after) == [expected]


def test_allowed_differences_do_not_make_a_part_differ(freeze):
    differing = list(freeze.differences({"int8 beam 4": [1]}, {"int8 beam 4": [2]}))
    assert "| decoding | equal | 9 | 0 | 1 |" in freeze.report({"decoding": (differing, 9)})
    differing += freeze.differences({"beam 4": [1]}, {"beam 4": [2]})
    assert "| decoding | **differs** | 9 | 1 | 1 |" in freeze.report({"decoding": (differing, 9)})


@pytest.mark.parametrize("arguments", ["no-commit .", ". . --only help timings"])
def test_wrong_usage_is_refused(arguments):
    command = [sys.executable, SCRIPT, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
