import subprocess
import sys

import pytest

MAPPED_ANEW = """
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


def num_faults(how):
    command = [sys.executable, "-c", MAPPED_ANEW, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_memory_that_is_freed_is_not_mapped_anew():
    assert num_faults("keep") < num_faults("leave") / 10
