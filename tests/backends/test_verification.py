"""Fast matrix products are compared with float64; wrong ones are reported and not used."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tfm.backends import products_cpu
from tfm.backends.plain import PLAIN_INFERENCE, PLAIN_TRAINING
from tfm.backends.products_cpu import prepack_fp32
from tfm.backends.selection import (
    MAX_ERRORS,
    inference_backend,
    inference_error,
    training_backend,
    training_error,
    verified_compute,
)
from tfm.commands.translator import Translator
from tfm.config import InferenceConfig
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.machine.compute import Compute
from tfm.translation.engine import Engine

CPU = torch.device("cpu")
FP32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
NEEDS_INT8 = pytest.mark.skipif(
    not products_cpu.HAS_INT8, reason="needs a torch with int8 products of oneDNN"
)

NARROW = pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", BF16), pytest.param("int8", INT8, marks=NEEDS_INT8)]
)


@pytest.fixture(autouse=True)
def clear_caches():
    for function in (inference_error, training_error):
        function.cache_clear()
    yield
    for function in (inference_error, training_error):
        function.cache_clear()


@pytest.fixture
def reported():
    """The lines that were reported to the user."""
    return []


@pytest.fixture
def change_products(monkeypatch):
    """Let a function change the results of prepacked linear layers of a dtype."""

    def apply(dtype, change):
        def prepack(weight, bias):
            linear = prepack_fp32(weight, bias)
            return lambda x, relu: change(linear(x.float(), relu))

        monkeypatch.setitem(products_cpu.PREPACK, dtype, prepack)

    return apply


def fail(_):
    raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize(
    "dtype",
    [FP32, pytest.param(BF16, marks=pytest.mark.needs_bf16), pytest.param(INT8, marks=NEEDS_INT8)],
)
def test_products_of_this_cpu_are_right(dtype):
    assert inference_error(dtype) < MAX_ERRORS[dtype] / 2
    if dtype != INT8:
        assert training_error(dtype) < MAX_ERRORS[dtype] / 2


@NEEDS_INT8
def test_overflow_of_8_bit_weights_in_16_bit_sums_is_detected(monkeypatch, this_cpu_has):
    this_cpu_has("avx2")
    monkeypatch.setattr(products_cpu, "_MAX_QUANTIZED_WEIGHT", {True: 127, False: 127})
    x, weight = torch.ones(4, 64), torch.ones(48, 64)
    with torch.inference_mode():
        overflows = float(products_cpu.prepack_int8(weight, None)(x, False)[0, 0]) < 60
    if not overflows:
        pytest.skip("this CPU adds 8-bit products in 32 bits")
    assert inference_error(INT8) > MAX_ERRORS[INT8]


@NARROW
@pytest.mark.parametrize(
    ("change", "error"), [(lambda out: out * 1.3, "0.3"), (fail, "inf"), (lambda x: x / 0, "inf")]
)
def test_wrong_products_are_replaced_by_fp32_and_reported(
    change_products, this_cpu_has, reported, precision, dtype, change, error
):
    this_cpu_has("avx512_bf16", "avx512_vnni")
    change_products(dtype, change)
    assert verified_compute("cpu", precision, notify=reported.append).dtype == FP32
    [line] = reported
    limit = f"{MAX_ERRORS[dtype]:g}"
    assert line == (
        f"warning: {precision} matrix products are wrong on this CPU (relative error {error}, at "
        f"most {limit} expected): computing in fp32 instead"
    )


@NARROW
def test_right_products_are_used(change_products, this_cpu_has, reported, precision, dtype):
    this_cpu_has("avx512_bf16", "avx512_vnni")
    change_products(dtype, lambda out: out * (1 + MAX_ERRORS[dtype] / 2))
    assert verified_compute("cpu", precision, notify=reported.append).dtype == dtype
    assert reported == []


def test_wrong_prepacked_fp32_products_are_replaced_by_plain_kernels(change_products, reported):
    change_products(FP32, lambda out: out + 1)
    assert inference_backend(Compute(CPU, FP32), notify=reported.append) is PLAIN_INFERENCE
    [line] = reported
    assert "fast fp32 matrix products are wrong" in line
    assert line.endswith("computing with plain kernels instead")


@NEEDS_INT8
def test_a_model_whose_int8_is_wrong_translates_in_fp32(
    trained_run, change_products, this_cpu_has, reported, capfd
):
    this_cpu_has("avx512_vnni")
    change_products(INT8, lambda out: out * 0)
    [folder] = (trained_run / "checkpoints").glob("*12")
    engine = Engine.start(
        [ModelFolder(folder)],
        InferenceConfig(device="cpu", precision="int8"),
        notify=reported.append,
    )
    assert engine.compute.dtype == FP32
    assert len(reported) == 1


def doubled(operation):
    """Return an operation that doubles its first argument."""
    return lambda first, *others: operation(first + first, *others)


def failing(_):
    """Return an operation that refuses its arguments, as after a change of its signature."""
    return lambda *_: fail(None)


def change(monkeypatch, library, name, how):
    """Change an operation of torch that has no public name, or remove it as a version may."""
    operations = getattr(torch.ops, library)
    if not hasattr(operations, name):
        pytest.skip(f"this build of torch has no {name}")
    if how is None:
        monkeypatch.setattr(torch.ops, library, SimpleNamespace())
    else:
        monkeypatch.setattr(operations, name, how(getattr(operations, name)))


def translate(run_dir, **settings):
    translator = Translator.load(run_dir, device="cpu", **settings)
    return translator.translate(f"number {number} is not {number + 1}" for number in range(5))


@pytest.mark.parametrize(
    ("precision", "library", "name", "how"),
    [
        ("fp32", "mkl", "_mkl_linear", doubled),
        ("fp32", "mkl", "_mkl_linear", None),
        ("bf16", "mkldnn", "_reorder_linear_weight", failing),
        ("int8", "quantized", "linear_relu_dynamic", None),
    ],
)
def test_translations_do_not_change_with_an_operation_of_torch(
    monkeypatch, trained_run, this_cpu_has, capfd, precision, library, name, how
):
    this_cpu_has("avx512_bf16", "avx512_vnni")
    expected = translate(trained_run, precision="fp32", kernels="plain")
    assert "warning" not in capfd.readouterr().err
    change(monkeypatch, library, name, how)
    assert translate(trained_run, precision=precision) == expected
    assert f"{precision} matrix products are wrong on this CPU" in capfd.readouterr().err


def test_a_process_with_two_threads_verifies_the_operations_of_its_workers(
    monkeypatch, this_cpu_has
):
    def doubled_with_one_thread(operation):
        twice = doubled(operation)
        return lambda *args: (twice if torch.get_num_threads() == 1 else operation)(*args)

    this_cpu_has()
    change(monkeypatch, "mkl", "_mkl_linear", doubled_with_one_thread)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    error = inference_error(FP32)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(num_threads)
    assert error > MAX_ERRORS[FP32]


@pytest.mark.parametrize("how", [doubled, failing, None])
@pytest.mark.parametrize(
    ("library", "name", "dtype"),
    [("mkldnn", "_linear_pointwise", BF16), ("aten", "threshold_backward", FP32)],
)
def test_training_does_not_change_with_an_operation_of_torch(
    monkeypatch, this_cpu_has, reported, library, name, dtype, how
):
    this_cpu_has("amx_bf16")
    change(monkeypatch, library, name, how)
    assert training_backend(Compute(CPU, dtype), "auto", notify=reported.append) is PLAIN_TRAINING
    assert " matrix products are wrong on this CPU" in reported.pop()
    assert verified_compute("cpu", "auto", trains=True, notify=reported.append).dtype == FP32


@NEEDS_INT8
def test_int8_without_units_warns_of_lower_precision(this_cpu_has, reported):
    this_cpu_has("avx2")
    assert verified_compute("cpu", "int8", notify=reported.append).dtype == INT8
    [line] = reported
    assert line.startswith("warning: this CPU has no int8 units (VNNI): weights are rounded to 7")


def test_int8_is_refused_if_torch_does_not_support_it(monkeypatch):
    monkeypatch.setattr(products_cpu, "HAS_INT8", False)
    with pytest.raises(
        UsageError, match="torch has no int8 products for this CPU: use --precision fp32"
    ):
        verified_compute("cpu", "int8")


@pytest.mark.usefixtures("elsewhere")
def test_training_in_bf16_without_units_is_refused_before_data_is_read(run, this_cpu_has):
    this_cpu_has("avx2")
    Path("data").mkdir()
    message = "this CPU has no bf16 units: use --precision fp32"
    run.fails(2, message, "train", "data", "--device", "cpu", "--precision", "bf16")
