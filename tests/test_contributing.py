"""The worked examples of docs/contributing are changes that apply to this code and pass tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in sorted((ROOT / "docs" / "contributing").glob("add-*.md"))
    if "```diff" in page.read_text(encoding="utf-8")
]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def diff(page):
    [block] = re.findall(r"^```diff\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return block


def apply(page, folder, *flags):
    command = ["git", "apply", *flags, "-"]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=diff(page),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_diff_of_a_worked_example_applies(page):
    checked = apply(page, ROOT, "--check")
    assert checked.returncode == 0, f"{page}: {checked.stderr}"


def test_the_worked_examples_pass_their_tests(tmp_path):
    for name in "tfm", "tests", "docs":
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for page in PAGES:
        assert apply(page, tmp_path).returncode == 0, page
    files = [f"tests/test_{name}.py" for name in ("words", "corpus")]
    selected = ["-k", "words or en-fr", *files]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *selected],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    passed = {Path(name).stem for name in re.findall(r"^(\S+\.py) \.+", tested.stdout, re.M)}
    assert passed == {Path(name).stem for name in files}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["quickstart", "test", "docs", "lint"])
def test_make_installs_the_torch_of_the_measurements(target):
    command = ["make", "--dry-run", "--always-make", target]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    [install] = re.findall(r".* pip install .*", planned.stdout)
    assert "--constraint constraints.txt" in install
    constrained = re.findall(r"^torch==(\S+);", (ROOT / "constraints.txt").read_text(), re.M)
    lab_book = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    [measured] = re.findall(r"^Machine \"2 cores\".*torch (\S+)$", lab_book, re.M)
    assert constrained == [measured]
