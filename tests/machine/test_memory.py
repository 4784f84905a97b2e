"""Freed memory is reused without new page faults."""

import sys

import pytest

COUNT_PAGE_FAULTS = """
import resource, sys
from tfm.machine.compute import keep_freed_memory
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_freed_memory_is_reused_without_page_faults(fork_python):
    processes = [fork_python(COUNT_PAGE_FAULTS, mode) for mode in ("keep", "default")]
    kept, default = (int(process.communicate(timeout=60)[0]) for process in processes)
    assert kept < default / 10
