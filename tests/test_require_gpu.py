"""With --require-gpu, skipped tests fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {
    "test_tests.py": """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no GPU")
def test_skipped_by_a_mark(): pass

def test_skipped_by_a_call(): pytest.skip("no GPU")

@pytest.mark.xfail(raises=ValueError)
def test_fails_as_expected(): raise ValueError
""",
    "test_module.py": """
import pytest

pytest.importorskip("no_such_module")

def test_is_not_collected(): pass
""",
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "1 passed, 3 skipped, 1 xfailed"),
        (["--require-gpu"], "1 failed, 1 passed, 1 xfailed, 2 errors"),
    ],
)
def test_a_skipped_test_fails_if_a_gpu_is_required(options, expected, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", *options]
    tested = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert expected in tested.stdout, tested.stdout + tested.stderr
    assert tested.returncode == bool(options)
