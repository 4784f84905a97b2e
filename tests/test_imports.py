"""Modules that must not import torch, which takes seconds."""

import subprocess
import sys

MODULES = (
    *("tfm", "tfm.stages.prepare", "tfm.stages.learn_bpe", "tfm.stages.binarize"),
    *(
        "tfm.stages.score",
        "tfm.stages.run_summaries",
        "tfm.stages.model_summaries",
        "tfm.applications.doctor.checks",
    ),
    "tfm.cli.main",
)


def test_importing_does_not_import_torch():
    code = "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    done = subprocess.run([sys.executable, "-c", code, *MODULES], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
