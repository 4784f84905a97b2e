"""A short run of benchmarks/faults/fuzz.py: a few damaged files for each reader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[1] / "benchmarks" / "faults" / "fuzz.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_damaged_and_hostile_files_give_a_result_or_one_line():
    done = subprocess.run(
        [sys.executable, FUZZER, "--cases", "5"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all |" in done.stdout
