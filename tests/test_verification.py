"""Products of a fast arithmetic are compared with float64; wrong ones are not used, and named."""

import pytest
import torch

from tfm.backends import cpu_inference, verification
from tfm.backends.cpu_inference import CpuInferenceBackend, prepack_fp32
from tfm.backends.plain import PLAIN
from tfm.backends.selection import inference_backend, verified_compute
from tfm.backends.verification import MAX_ERRORS, inference_error, training_error
from tfm.config import InferenceConfig
from tfm.device.compute import Compute
from tfm.device.cpu import Cpu
from tfm.errors import UsageError
from tfm.inference.engine import load_engine

FP32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
NEEDS_INT8 = pytest.mark.skipif(
    not cpu_inference.HAS_INT8, reason="needs a torch with int8 products of oneDNN"
)

NARROW = pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", BF16), pytest.param("int8", INT8, marks=NEEDS_INT8)]
)


@pytest.fixture(autouse=True)
def verify_anew():
    for each in (inference_error, training_error):
        each.cache_clear()
    yield
    for each in (inference_error, training_error):
        each.cache_clear()


@pytest.fixture
def told():
    """The lines that were said."""
    return []


@pytest.fixture
def this_cpu_has(monkeypatch):
    """Pretend that the CPU has certain units."""

    def have(*flags):
        cpu = Cpu(model="a CPU", flags=frozenset(flags))
        for module in (
            "tfm.device.compute",
            "tfm.backends.selection",
            "tfm.backends.cpu_inference",
        ):
            monkeypatch.setattr(f"{module}.this_cpu", lambda: cpu)

    return have


@pytest.fixture
def multiply(monkeypatch):
    """Have products of an arithmetic for inference come out as a function says."""

    def do(dtype, change):
        def prepare(weight, bias):
            product = prepack_fp32(weight, bias)
            return lambda x, relu: change(product(x.float(), relu))

        monkeypatch.setitem(cpu_inference.PREPACK, dtype, prepare)

    return do


def fails(_):
    raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize(
    "dtype",
    [
        FP32,
        pytest.param(BF16, marks=pytest.mark.needs_bf16),
        pytest.param(INT8, marks=NEEDS_INT8),
    ],
)
def test_the_products_of_this_cpu_are_right(dtype):
    assert inference_error(dtype) < MAX_ERRORS[dtype] / 2
    if dtype != INT8:
        assert training_error(dtype) < MAX_ERRORS[dtype] / 2


@NEEDS_INT8
def test_8_bit_weights_are_found_out_where_sums_have_16_bits(monkeypatch, this_cpu_has):
    this_cpu_has("avx2")
    monkeypatch.setattr(cpu_inference, "_MAX_WEIGHT_ELEMENTS", {True: 127, False: 127})
    x, weight = torch.ones(4, 64), torch.ones(48, 64)
    with torch.inference_mode():
        overflows = float(cpu_inference.prepack_int8(weight, None)(x, False)[0, 0]) < 60
    if not overflows:
        pytest.skip("this CPU adds products of 8 bits up in 32")
    assert inference_error(INT8) > MAX_ERRORS[INT8]


@NARROW
@pytest.mark.parametrize(
    ("change", "error"), [(lambda out: out * 1.3, "0.3"), (fails, "inf"), (lambda x: x / 0, "inf")]
)
def test_a_wrong_arithmetic_gives_way_to_fp32_and_is_named(
    multiply, this_cpu_has, told, precision, dtype, change, error
):
    this_cpu_has("avx512_bf16", "avx512_vnni")
    multiply(dtype, change)
    assert verified_compute("cpu", precision, notify=told.append).dtype == FP32
    [line] = told
    limit = f"{MAX_ERRORS[dtype]:g}"
    assert line == (
        f"warning: {precision} matrix products are wrong on this CPU (relative error {error}, at "
        f"most {limit} expected): computing in fp32 instead"
    )


@NARROW
def test_a_right_arithmetic_is_taken(multiply, this_cpu_has, told, precision, dtype):
    this_cpu_has("avx512_bf16", "avx512_vnni")
    multiply(dtype, lambda out: out * (1 + MAX_ERRORS[dtype] / 2))
    assert verified_compute("cpu", precision, notify=told.append).dtype == dtype
    assert told == []


@pytest.mark.parametrize("what", ["training", "validation"])
def test_training_in_a_wrong_arithmetic_gives_way_to_fp32(
    monkeypatch, multiply, this_cpu_has, told, what
):
    this_cpu_has("amx_bf16")
    multiply(BF16, lambda out: out * (1.3 if what == "validation" else 1.0))
    if what == "training":
        wrong = verification.CpuBackend
        monkeypatch.setattr(wrong, "linear", lambda _, x, weight, bias: x * 1.0)
    assert verified_compute("cpu", "auto", trains=True, notify=told.append).dtype == FP32
    assert "computing in fp32 instead" in told[0]


def test_wrong_fast_products_in_fp32_give_way_to_plain_ones(multiply, told):
    multiply(FP32, lambda out: out + 1)
    assert inference_backend(Compute(torch.device("cpu"), FP32), notify=told.append) is PLAIN
    [line] = told
    assert "prepacked fp32 matrix products are wrong" in line
    assert line.endswith("computing with plain kernels instead")


@NEEDS_INT8
def test_a_model_whose_int8_is_wrong_translates_in_fp32(
    trained_run, multiply, this_cpu_has, told, capfd
):
    this_cpu_has("avx512_vnni")
    multiply(INT8, lambda out: out * 0)
    [folder] = (trained_run / "checkpoints").glob("*12")
    engine = load_engine(
        [folder], InferenceConfig(device="cpu", precision="int8"), notify=told.append
    )
    assert engine.compute.dtype == FP32
    assert len(told) == 1


@NEEDS_INT8
def test_without_units_int8_says_what_it_is_worth(this_cpu_has, told):
    this_cpu_has("avx2")
    assert verified_compute("cpu", "int8", notify=told.append).dtype == INT8
    [line] = told
    assert line.startswith("warning: this CPU has no int8 units (VNNI): weights are rounded to 7")


def test_a_torch_without_int8_is_named(monkeypatch):
    monkeypatch.setattr(cpu_inference, "HAS_INT8", False)
    with pytest.raises(UsageError, match="torch has no int8 for this CPU: use --precision fp32"):
        verified_compute("cpu", "int8")


def test_fp32_is_computed_by_products_made_for_inference():
    assert isinstance(inference_backend(Compute(torch.device("cpu"), FP32)), CpuInferenceBackend)


@pytest.mark.usefixtures("elsewhere")
def test_training_in_bf16_without_units_is_refused_before_data_are_looked_for(run, this_cpu_has):
    this_cpu_has("avx2")
    code, out, err = run("train", "data", "--device", "cpu", "--precision", "bf16")
    assert (code, out) == (2, "")
    assert err == "tfm: this CPU has no bf16 units: use --precision fp32\n"


def test_translating_in_bf16_without_units_is_refused_in_one_line(
    run, elsewhere, trained_run, this_cpu_has
):
    this_cpu_has("avx2")
    (elsewhere / "text").write_text("one\n")
    code, out, err = run(
        "generate", trained_run, "--input", "text", "--device", "cpu", "--precision", "bf16"
    )
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "tfm: this CPU has no bf16 units: use --precision fp32 (or int8)"
