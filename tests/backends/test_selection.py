"""The choice of a backend by device, arithmetic and --kernels."""

import pytest
import torch
from small_models import transformer

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.inference_gpu import GpuInference
from tfm.backends.plain import PLAIN_INFERENCE, PLAIN_TRAINING
from tfm.backends.selection import inference_backend, training_backend, verified_compute
from tfm.backends.training_compiled import CompiledTraining
from tfm.backends.training_cpu import CpuTraining
from tfm.errors import UsageError
from tfm.machine.compute import Compute

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.needs_bf16)]
)
def test_a_cpu_uses_fast_kernels_unless_plain_ones_are_requested(dtype):
    assert isinstance(training_backend(Compute(CPU, dtype), "auto"), CpuTraining)
    assert training_backend(Compute(CPU, dtype), "plain") is PLAIN_TRAINING
    assert isinstance(inference_backend(Compute(CPU, dtype), "auto"), CpuInference)
    assert inference_backend(Compute(CPU, dtype), "plain") is PLAIN_INFERENCE


def test_a_cpu_computes_fp16_with_plain_kernels_only():
    assert training_backend(Compute(CPU, torch.float16), "auto") is PLAIN_TRAINING
    assert inference_backend(Compute(CPU, torch.float16), "auto") is PLAIN_INFERENCE


@pytest.mark.parametrize(
    ("flags", "faster"),
    [("avx2", "fp32"), ("avx512f avx512_bf16", "bf16"), ("avx512f avx512_fp16", None)],
)
def test_fp16_on_a_cpu_that_emulates_it_is_warned_of(this_cpu_has, flags, faster):
    this_cpu_has(*flags.split())
    for trains in (False, True):
        reported = []
        compute = verified_compute("cpu", "fp16", trains=trains, notify=reported.append)
        assert compute.dtype == torch.float16
        assert ["fp16" in each and f"use --precision {faster}" in each for each in reported] == [
            True
        ] * (faster is not None)


def test_plain_int8_is_refused():
    with pytest.raises(UsageError, match="plain kernels do not support int8"):
        inference_backend(Compute(CPU, torch.int8), "plain")


def test_a_gpu_casts_the_weights_of_half_precision_once():
    half, full = (Compute(GPU, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert isinstance(inference_backend(half, "auto"), GpuInference)
    assert inference_backend(half, "plain") is PLAIN_INFERENCE
    assert inference_backend(full, "auto") is PLAIN_INFERENCE


def test_a_gpu_compiles_training_unless_that_is_refused(monkeypatch):
    monkeypatch.setattr("tfm.backends.selection.compilation_problem", lambda _: None)
    monkeypatch.setattr("tfm.backends.selection.working_kernel", lambda *_: ("flash", None))
    compute = Compute(GPU, torch.bfloat16)
    assert isinstance(training_backend(compute, "auto"), CompiledTraining)
    assert training_backend(compute, "auto", compiles=False) is PLAIN_TRAINING
    assert training_backend(compute, "plain") is PLAIN_TRAINING


def test_a_gpu_without_kernels_of_attention_says_so(monkeypatch):
    monkeypatch.setattr("tfm.backends.selection.compilation_problem", lambda _: None)
    monkeypatch.setattr("tfm.backends.selection.working_kernel", lambda *_: (None, "too old"))
    reported = []
    compute = Compute(GPU, torch.float16)
    backend = training_backend(compute, "auto", notify=reported.append)
    assert (backend.compiles, backend.packs(transformer(20, d_model=16))) == (True, False)
    assert len(reported) == 1
    assert "(too old)" in reported[0]


def test_a_gpu_that_cannot_compile_trains_without_and_says_so(monkeypatch):
    monkeypatch.setattr("tfm.backends.selection.compilation_problem", lambda _: "no C compiler")
    reported = []
    compute = Compute(GPU, torch.bfloat16)
    assert training_backend(compute, "auto", notify=reported.append) is PLAIN_TRAINING
    [line] = reported
    assert line == (
        "warning: torch cannot compile on this machine (no C compiler): training without, more "
        "slowly; install a C compiler, or set --no-compile"
    )


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of itself
@pytest.mark.parametrize(
    "backend", [CpuTraining(torch.float32), CompiledTraining("flash")], ids=["CPU", "compiled"]
)
def test_fast_modules_of_training_have_the_same_parameters(backend):
    model = transformer(20, d_model=16)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    backend.install(model)
    assert dict(model.named_modules()) != modules
    installed = dict(model.named_parameters())
    assert list(installed) == list(parameters)
    assert all(installed[name] is parameter for name, parameter in parameters.items())
