"""The choice of device and arithmetic."""

import pytest
import torch

from tfm.errors import UsageError
from tfm.machine import compute as module
from tfm.machine.compute import (
    choose_compute,
    choose_fp32_library,
    is_out_of_memory,
    measure_fp32_flops,
    onednn_products,
)
from tfm.machine.cpu import Cpu


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_cpu_computes_in_fp32():
    for device in ("auto", "cpu"):
        compute = choose_compute(device, "auto")
        assert (compute.device.type, compute.dtype) == ("cpu", torch.float32)
        assert str(compute).startswith("cpu in fp32, ")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        (["avx2"], torch.float32),
        (["avx512f", "avx512_vnni"], torch.float32),
        (["avx2", "avx_ne_convert"], torch.float32),
        (["avx512f", "avx512_bf16"], torch.bfloat16),
        (["avx512f", "avx512_bf16", "amx_bf16"], torch.bfloat16),
    ],
)
def test_a_cpu_trains_in_bf16_if_it_multiplies_it(this_cpu_has, flags, dtype):
    this_cpu_has(*flags)
    assert choose_compute("cpu", "auto", trains=True).dtype == dtype
    assert choose_compute("cpu", "auto").dtype == torch.float32
    assert choose_compute("cpu", "fp32", trains=True).dtype == torch.float32


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("trains", "advice"), [(True, "fp32"), (False, r"fp32 \(or int8\)")], ids=["train", "translate"]
)
def test_bf16_is_refused_without_units_for_it(this_cpu_has, trains, advice):
    this_cpu_has("avx2", "avx512f", "avx512_vnni")
    with pytest.raises(UsageError, match=f"^this CPU has no bf16 units: use --precision {advice}$"):
        choose_compute("auto", "bf16", trains=trains)


@pytest.mark.usefixtures("no_gpu")
def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device, name in (("cuda", "GPU"), ("mps", "Apple GPU")):
        with pytest.raises(UsageError, match=f"torch sees no {name}: use --device cpu"):
            choose_compute(device, "auto")


def test_an_apple_gpu_computes_in_fp32_if_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for precision in ("auto", "fp32"):
        compute = choose_compute("mps", precision)
        assert (str(compute), compute.dtype) == ("mps in fp32", torch.float32)
    for precision in ("bf16", "fp16", "int8"):
        with pytest.raises(UsageError, match=f"precision is {precision}.*use --precision fp32"):
            choose_compute("mps", precision)


def test_fp32_products_are_exact():
    choose_compute("cpu", "fp32")
    torch.manual_seed(0)
    for shape in ((300, 512), (64, 2048), (1, 512)):
        left, right = torch.randn(shape), torch.randn(shape[1], 512)
        exact = left.double() @ right.double()
        assert ((left @ right).double() - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp32", torch.float32),
        pytest.param("bf16", torch.bfloat16, marks=pytest.mark.needs_bf16),
        ("fp16", torch.float16),
    ],
)
def test_matrix_products_have_the_requested_precision(precision, dtype):
    compute = choose_compute("cpu", precision)
    x = torch.ones(4, 4)
    with compute.autocast():
        assert (x @ x).dtype == dtype
    assert f"in {precision}" in str(compute)


def test_measuring_products_draws_no_random_numbers():
    before = torch.get_rng_state()
    assert 1e8 < measure_fp32_flops(torch.device("cpu")) < 1e14
    assert torch.equal(torch.get_rng_state(), before)


MATMUL = torch.backends.mkldnn.matmul


@pytest.fixture
def default_precision():
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "none"
    yield
    MATMUL.fp32_precision = before


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(
    ("vendor", "flags", "error", "expected"),
    [
        ("AuthenticAMD", {"avx2", "avx512f"}, 1e-6, "bf16"),
        ("AuthenticAMD", {"avx2", "avx512f"}, 1e-2, "none"),  # it multiplies in bf16
        ("AuthenticAMD", {"avx2"}, 1e-6, "none"),  # torch would use MKL all the same
        ("GenuineIntel", {"avx2", "avx512f"}, 1e-6, "none"),
        ("", set(), 1e-6, "none"),
    ],
)
def test_onednn_is_used_where_mkl_is_slow_if_it_is_exact(
    monkeypatch, vendor, flags, error, expected
):
    cpu = Cpu(model="a CPU", vendor=vendor, flags=frozenset(flags))
    monkeypatch.setattr(module, "this_cpu", lambda: cpu)
    monkeypatch.setattr(module, "_product_error", lambda: error)
    monkeypatch.setattr(module, "_onednn_is_faster", module._onednn_is_faster.__wrapped__)
    MATMUL.fp32_precision = "none"
    with onednn_products():
        assert MATMUL.fp32_precision == expected
    assert MATMUL.fp32_precision == "none"
    choose_fp32_library()
    assert MATMUL.fp32_precision == expected


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 911360 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    torch.distributed.DistBackendError("NCCL error\nLast error:\nCuda failure 'out of memory'"),
]
OTHER = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    Exception("out of resource: shared memory, Required: 131072"),  # of Triton
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    OSError("out of memory"),
]


def test_every_library_reports_out_of_memory_in_its_own_way():
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory") as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert all(map(is_out_of_memory, [*OUT_OF_MEMORY, raised.value]))
    assert not any(map(is_out_of_memory, OTHER))  # which smaller batches do not repair
