"""The choice of a backend by device, arithmetic and --kernels."""

import pytest
import torch

from tfm.backends import has_triton, selection
from tfm.backends.cpu import CpuBackend
from tfm.backends.cpu_inference import CpuInferenceBackend
from tfm.backends.plain import PLAIN
from tfm.backends.selection import inference_backend, training_backend
from tfm.device.compute import Compute
from tfm.errors import UsageError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def use_gpu(monkeypatch):
    """Pretend that there is a GPU, with or without Triton."""

    def use(capability, *, triton=True):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(selection, "has_triton", lambda: triton)

    return use


@pytest.fixture(params=[training_backend, inference_backend])
def choose(request):
    return request.param


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.needs_bf16)]
)
@pytest.mark.parametrize("kernels", ["auto", "fast"])
def test_a_cpu_uses_fast_kernels_unless_plain_ones_are_requested(dtype, kernels):
    assert isinstance(training_backend(Compute(CPU, dtype), kernels), CpuBackend)
    assert training_backend(Compute(CPU, dtype), "plain") is PLAIN
    assert isinstance(inference_backend(Compute(CPU, dtype), kernels), CpuInferenceBackend)
    assert inference_backend(Compute(CPU, dtype), "plain") is PLAIN


def test_a_cpu_computes_fp16_with_plain_kernels_only(choose):
    compute = Compute(CPU, torch.float16)
    assert choose(compute, "auto") is PLAIN
    with pytest.raises(UsageError, match=r"no fast kernels for cpu in fp16.*--kernels auto"):
        choose(compute, "fast")


def test_plain_int8_is_refused():
    with pytest.raises(UsageError, match="plain kernels do not support int8"):
        inference_backend(Compute(CPU, torch.int8), "plain")


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_a_gpu_uses_plain_kernels_unless_fast_ones_are_requested(choose, kernels, use_gpu):
    use_gpu((9, 0))
    assert choose(Compute(GPU, torch.bfloat16), kernels) is PLAIN


def test_fast_kernels_on_an_old_gpu_are_refused(choose, use_gpu):
    use_gpu((7, 5))
    with pytest.raises(UsageError, match=r"capability 8\.0.* a GPU in fp16 has 7\.5: use"):
        choose(Compute(GPU, torch.float16), "fast")


def test_fast_kernels_without_triton_are_refused(choose, use_gpu):
    use_gpu((9, 0), triton=False)
    with pytest.raises(UsageError, match="pip install triton"):
        choose(Compute(GPU, torch.bfloat16), "fast")


@pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_uses_fast_kernels_if_requested(dtype, use_gpu):
    from tfm.backends.gpu import GpuBackend, GpuInferenceBackend

    use_gpu((8, 0))
    compute = Compute(GPU, dtype)
    assert isinstance(training_backend(compute, "fast"), GpuBackend)
    backend = inference_backend(compute, "fast")
    assert isinstance(backend, GpuInferenceBackend)
    assert backend.weights_dtype == dtype
    assert backend.decodes_in_slots
