"""The GPU path, run by a CPU build of torch that believes in a GPU: see README.md."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from claimed_gpu import claim

FOLDER = Path(__file__).parent
PROBLEM = claim.problem()
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
NEEDS_TRITON = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="needs triton: make nightly installs it"
)


def run_checks(folder: Path, *names: str, options: tuple[str, ...] = ()) -> None:
    """Run test files in a process that loads the guard library before torch."""
    files = [FOLDER / f"check_{name}.py" for name in names]
    plugins = ["-p", "claimed_gpu.claim", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, *files]
    changes = {f"{name}_CACHE_DIR": str(folder) for name in ("TRITON", "TORCHINDUCTOR")}
    changes[claim.GUARD] = str(claim.build(folder))
    done = subprocess.run(
        [*command, f"--basetemp={folder}/pytest"], env=os.environ | changes, cwd=FOLDER.parent,
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_training_and_searches_on_an_emulated_gpu(tmp_path):
    run_checks(tmp_path, "training", "search")


@NEEDS_TRITON
@pytest.mark.slow
def test_a_step_is_compiled_for_an_h100(tmp_path):
    run_checks(tmp_path, "compiled", options=("-W", "ignore"))  # torch's compiler warns of itself
