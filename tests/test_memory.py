"""Freed memory is reused without new page faults."""

import subprocess
import sys

import pytest

COUNT_PAGE_FAULTS = """
import resource, sys
from tfm.device.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def fill():
    b"x" * 20_000_000
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_page_faults(mode):
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS, mode]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(process.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_freed_memory_is_reused_without_page_faults():
    assert num_page_faults("keep") < num_page_faults("default") / 10
