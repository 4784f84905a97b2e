"""The device of tests of Triton kernels: a GPU, or a CPU with Triton's interpreter.

Tests import it before kernels, and are skipped without Triton.
"""

import os

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
# The interpreter of Triton 3.6 fails with numpy 2.4.
pytest.importorskip("triton", minversion="3.6" if DEVICE.type == "cuda" else "3.7")

# Relative to the largest element. A GPU multiplies fp32 by three TF32 products.
FP32_ERROR = 1e-5 if DEVICE.type == "cuda" else 2e-6
