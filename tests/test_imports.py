"""Modules that must not import torch, which takes seconds."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["tfm", "tfm.api", "tfm.stages.prepare", "tfm.stages.learn_bpe", "tfm.stages.binarize",
     "tfm.stages.score", "tfm.stages.quickstart", "tfm.stages.runs", "tfm.stages.models",
     "tfm.stages.doctor", "tfm.cli.main"],
)  # fmt: skip
def test_importing_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
