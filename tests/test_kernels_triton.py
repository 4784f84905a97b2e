"""Every kernel against its plain twin in float64: on a GPU, or in Triton's interpreter.

The interpreter takes the bits of bf16 for integers in matrix products, so that attention in bf16 is
tried on a GPU only; it is the same code as in fp16.
"""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytest.importorskip("triton", minversion="3.7")

from tfm.kernels import (  # noqa: E402
    cross_entropy,
    cross_entropy_triton,
    dropout_add_norm,
    dropout_add_norm_triton,
    packed_attention,
    packed_attention_triton,
)
from tfm.kernels.packed_attention import attention_spans  # noqa: E402

# Largest error of the largest element. The interpreter cuts bf16 off where a GPU rounds it.
ERRORS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LENGTHS = [5, 40, 0, 70, 13]
KEY_LENGTHS = [30, 4, 0, 2, 50]
SPARE = 9

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies bf16 wrongly")
MULTIPLIED = [*DTYPES[:2], pytest.param(torch.bfloat16, marks=needs_gpu)]


def close(found, expected, dtype):
    for ours, theirs in zip(found, expected, strict=True):
        difference = (ours.detach().double() - theirs.detach().double()).abs().max()
        assert float(difference) <= ERRORS[dtype] * float(theirs.detach().abs().max())


def spans_of(lengths, key_lengths, **reach):
    # Room for more sentences than there are.
    offsets, key_offsets = (
        torch.tensor([0, *torch.tensor(x).cumsum(0), sum(x)], device=DEVICE).int()
        for x in (lengths, key_lengths)
    )
    num_queries, num_keys = (sum(x) + SPARE for x in (lengths, key_lengths))
    return attention_spans(
        offsets, key_offsets, num_queries=num_queries, num_keys=num_keys, **reach
    )


def random(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=DEVICE, dtype=dtype)


def result_and_gradients(function, inputs, *, dtype, num_used=None, **options):
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    results = function(*inputs, **options)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    used = results[:num_used]
    gradients = [random(*x.shape, dtype=torch.float32, seed=9).to(x.dtype) for x in used]
    return *results, *torch.autograd.grad(used, inputs, gradients)


def check_attention(
    lengths, key_lengths, *, dtype, widths=(16, 16), heads=2, name="packed_attention", **reach
):
    spans = spans_of(lengths, key_lengths, **reach)
    shapes = {
        "packed_attention": [
            (len(spans.keys), heads, widths[0]),
            (len(spans.queries), heads, widths[0]),
            (len(spans.queries), heads, widths[1]),
        ],
        "packed_self_attention": [(len(spans.keys), 3, heads, widths[0])],
        "packed_cross_attention": [
            (len(spans.keys), heads, widths[0]),
            (len(spans.queries), 2, heads, widths[0]),
        ],
    }[name]
    inputs = [random(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    for dropout in (0.0, 0.1):
        options = {"spans": spans, "dropout": dropout, "seed": torch.tensor([77], device=DEVICE)}
        close(
            result_and_gradients(
                getattr(packed_attention_triton, name), inputs, dtype=dtype, **options
            ),
            result_and_gradients(
                getattr(packed_attention, name), inputs, dtype=torch.float64, **options
            ),
            dtype,
        )


@pytest.mark.parametrize("dtype", MULTIPLIED)
@pytest.mark.parametrize("reach", [{}, {"after": 0}, {"before": 3, "after": 3}])
def test_attention_within_sentences_equals_its_twin_dropout_included(dtype, reach):
    check_attention(LENGTHS, LENGTHS, dtype=dtype, **reach)


@pytest.mark.parametrize("dtype", MULTIPLIED)
def test_attention_across_sentences_equals_its_twin_dropout_included(dtype):
    check_attention(LENGTHS, KEY_LENGTHS, dtype=dtype)


@pytest.mark.parametrize("widths", [(24, 40), (8, 5), (160, 16)])
def test_attention_takes_heads_of_any_width(widths):
    check_attention([20, 3], [9, 30], dtype=torch.float32, widths=widths, heads=3)


def test_attention_takes_a_sentence_of_several_tiles():
    check_attention([3, 200], [3, 200], dtype=torch.float32, after=0)


@pytest.mark.parametrize("name", ["packed_self_attention", "packed_cross_attention"])
def test_attention_over_joined_projections_equals_its_twin(name):
    check_attention(LENGTHS, LENGTHS, dtype=torch.float32, name=name)


def test_attention_neither_reads_nor_fills_what_is_padding():
    spans = spans_of(LENGTHS, LENGTHS)
    inputs = [random(len(spans.keys), 2, 16, dtype=torch.float32, seed=0) for _ in range(3)]
    for x in inputs:
        x[sum(LENGTHS) :] = torch.nan
    attended, *gradients = result_and_gradients(
        packed_attention_triton.packed_attention, inputs, dtype=torch.float32, spans=spans
    )
    assert attended.isfinite().all()
    assert not attended[sum(LENGTHS) :].any()
    for grad in gradients:
        assert grad.isfinite().all()
        assert not grad[sum(LENGTHS) :].any()


def test_attention_refuses_spans_of_other_rows_and_heads_too_wide():
    spans = spans_of([4], [4])
    short = random(3, 1, 16, dtype=torch.float32, seed=0)
    with pytest.raises(ValueError, match="3 rows of queries"):
        packed_attention_triton.packed_attention(short, short, short, spans)
    wide = random(4 + SPARE, 1, 600, dtype=torch.float32, seed=0)
    with pytest.raises(ValueError, match="2400 bytes"):
        packed_attention_triton.packed_attention(wide, wide, wide, spans)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [5, 37, 5000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_its_twin(dtype, vocab_size, smoothing):
    logits = 3 * random(9, vocab_size, dtype=dtype, seed=0)
    logits[3] = torch.nan  # as padding may be
    targets = torch.arange(9, device=DEVICE) % vocab_size
    targets[3] = cross_entropy.PADDING
    exact = logits.double()
    found = cross_entropy_triton.cross_entropy_(logits, targets, smoothing=smoothing)
    expected = cross_entropy.cross_entropy_(exact, targets, smoothing=smoothing)
    close(found, expected, torch.float32)
    close([logits], [exact], dtype)


def test_cross_entropy_leaves_what_lies_between_rows_alone():
    joined = random(4, 50, dtype=torch.float32, seed=0)
    before = joined.clone()
    targets = torch.tensor([1, 2, 3, 4], device=DEVICE)
    cross_entropy_triton.cross_entropy_(joined[:, :40], targets, smoothing=0.1)
    assert torch.equal(joined[:, 40:], before[:, 40:])
    assert not torch.equal(joined[:, :40], before[:, :40])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "d_model"), [(7, 5), (33, 512), (601, 16)])
@pytest.mark.parametrize("num_used", [1, 2])
def test_dropout_add_norm_equals_its_twin_dropout_included(
    dtype, num_rows, d_model, num_used, monkeypatch
):
    monkeypatch.setattr(dropout_add_norm_triton, "_NUM_SUMS", 2)  # so that programs go round
    shapes = [(num_rows, d_model), (num_rows, d_model), (d_model,), (d_model,)]
    inputs = [random(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]

    def results(function, precision, dropout):
        # Post-norm uses the normalised sum alone.
        return result_and_gradients(
            lambda *x, **options: function(*x, **options)[::-1],
            inputs,
            dtype=precision,
            num_used=num_used,
            eps=1e-5,
            dropout=dropout,
            seed=torch.tensor([-5], device=DEVICE),
        )

    for dropout in (0.0, 0.1):
        close(
            results(dropout_add_norm_triton.dropout_add_norm, dtype, dropout),
            results(dropout_add_norm.dropout_add_norm, torch.float64, dropout),
            dtype,
        )


def test_torch_may_compile_what_uses_the_kernels():
    offsets = torch.tensor([0, 5, 20], device=DEVICE).int()
    seeds = torch.tensor([3, 4], device=DEVICE)
    weight, bias = torch.ones(32, device=DEVICE), torch.zeros(32, device=DEVICE)

    def layer(projected):
        spans = attention_spans(offsets, offsets, num_queries=24, num_keys=24, after=0)
        attended = packed_attention_triton.packed_self_attention(
            projected, spans, dropout=0.1, seed=seeds[:1]
        )
        return dropout_add_norm_triton.dropout_add_norm(
            projected[:, 0].flatten(1), attended.flatten(1), weight, bias, eps=1e-5, dropout=0.1,
            seed=seeds[1:],
        )  # fmt: skip

    inputs = [random(24, 3, 2, 16, dtype=torch.float32, seed=0)]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = (
        result_and_gradients(function, inputs, dtype=torch.float32)
        for function in (compiled, layer)
    )
    close(found, expected, torch.float32)
