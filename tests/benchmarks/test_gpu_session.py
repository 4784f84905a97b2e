"""The script that checks and times tfm on a GPU, tried on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_session.py"


def test_a_dry_run_succeeds(tmp_path):
    command = [sys.executable, SCRIPT, "all", "--dry-run", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
