"""The choice of a backend by device, arithmetic and --kernels."""

import pytest
import torch

from tfm.backends.cpu import CpuBackend
from tfm.backends.cpu_inference import CpuInferenceBackend
from tfm.backends.plain import PLAIN
from tfm.backends.selection import inference_backend, training_backend
from tfm.device.compute import Compute
from tfm.errors import UsageError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(params=[training_backend, inference_backend])
def choose(request):
    return request.param


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.needs_bf16)]
)
def test_a_cpu_uses_fast_kernels_unless_plain_ones_are_requested(dtype):
    assert isinstance(training_backend(Compute(CPU, dtype), "auto"), CpuBackend)
    assert training_backend(Compute(CPU, dtype), "plain") is PLAIN
    assert isinstance(inference_backend(Compute(CPU, dtype), "auto"), CpuInferenceBackend)
    assert inference_backend(Compute(CPU, dtype), "plain") is PLAIN


def test_a_cpu_computes_fp16_with_plain_kernels_only(choose):
    assert choose(Compute(CPU, torch.float16), "auto") is PLAIN


def test_plain_int8_is_refused():
    with pytest.raises(UsageError, match="plain kernels do not support int8"):
        inference_backend(Compute(CPU, torch.int8), "plain")


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_a_gpu_uses_plain_kernels(choose, kernels):
    assert choose(Compute(GPU, torch.bfloat16), kernels) is PLAIN
