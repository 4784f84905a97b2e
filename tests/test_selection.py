"""Fast operations are taken where they were measured to be, or are asked for."""

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
    """Pretend that there is a GPU, with Triton or without."""

    def use(capability, *, triton=True):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(selection, "has_triton", lambda: triton)

    return use


@pytest.fixture(params=[training_backend, inference_backend])
def choose(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["auto", "fast"])
def test_a_cpu_is_fast_unless_it_is_to_be_plain(dtype, kernels):
    assert isinstance(training_backend(Compute(CPU, dtype), kernels), CpuBackend)
    assert training_backend(Compute(CPU, dtype), "plain") is PLAIN
    assert isinstance(inference_backend(Compute(CPU, dtype), kernels), CpuInferenceBackend)
    assert inference_backend(Compute(CPU, dtype), "plain") is PLAIN


def test_arithmetic_that_a_cpu_imitates_is_plain(choose):
    compute = Compute(CPU, torch.float16)
    assert choose(compute, "auto") is PLAIN
    with pytest.raises(UsageError, match=r"no fast kernels for cpu in fp16.*--kernels auto"):
        choose(compute, "fast")


def test_int8_is_never_plain():
    with pytest.raises(UsageError, match="plain kernels have no int8"):
        inference_backend(Compute(CPU, torch.int8), "plain")


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_a_gpu_is_plain_unless_it_is_to_be_fast(choose, kernels, use_gpu):
    use_gpu((9, 0))
    assert choose(Compute(GPU, torch.bfloat16), kernels) is PLAIN


def test_a_gpu_that_is_too_old_is_refused_by_name(choose, use_gpu):
    use_gpu((7, 5))
    with pytest.raises(UsageError, match=r"capability 8\.0.* a GPU in fp16 is 7\.5: use"):
        choose(Compute(GPU, torch.float16), "fast")


def test_a_gpu_without_triton_is_told_what_to_install(choose, use_gpu):
    use_gpu((9, 0), triton=False)
    with pytest.raises(UsageError, match="pip install triton"):
        choose(Compute(GPU, torch.bfloat16), "fast")


@pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_that_is_asked_for_it_is_fast(dtype, use_gpu):
    from tfm.backends.gpu import GpuBackend
    from tfm.backends.gpu_inference import GpuInferenceBackend

    use_gpu((8, 0))
    compute = Compute(GPU, dtype)
    assert isinstance(training_backend(compute, "fast"), GpuBackend)
    backend = inference_backend(compute, "fast")
    assert isinstance(backend, GpuInferenceBackend)
    assert backend.weights_dtype == dtype
    assert backend.decodes_in_slots
