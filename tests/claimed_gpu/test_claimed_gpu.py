"""The GPU path, run by a CPU build of torch that believes in a GPU: see README.md."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from claimed_gpu import claim

FOLDER = Path(__file__).parent
TIMEOUT_SECONDS = 600
PROBLEM = claim.problem()
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))


NEEDS_TRITON = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="needs triton: make test-gpu installs it"
)


def run_checks(folder: Path, *names: str, options: tuple[str, ...] = ()) -> None:
    """Run test files in a process that loads the guard library before torch."""
    files = [FOLDER / f"check_{name}.py" for name in names]
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={folder}/pytest", *options)
    caches = {f"{name}_CACHE_DIR": str(folder) for name in ("TRITON", "TORCHINDUCTOR")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=os.environ | caches | {claim.GUARD: str(claim.build(folder))},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_training_and_searches_on_an_emulated_gpu(tmp_path):
    run_checks(tmp_path, "training", "search")


@NEEDS_TRITON
@pytest.mark.slow
def test_a_step_is_compiled_for_an_h100(tmp_path):
    run_checks(tmp_path, "compiled", options=("-W", "ignore"))  # torch's compiler warns of itself
