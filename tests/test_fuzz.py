"""Short runs of benchmarks/faults/fuzz.py: a few damaged files for each reader, and values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[1] / "benchmarks" / "faults" / "fuzz.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize(
    "arguments", [["--cases", "5"], ["--cases", "40", "--reader", "values of flags"]]
)
def test_hostile_files_and_mistaken_values_give_a_result_or_one_line(arguments):
    done = subprocess.run(
        [sys.executable, FUZZER, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all |" in done.stdout
