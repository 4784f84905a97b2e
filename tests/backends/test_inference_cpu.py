"""Prepacked linear layers against float64, and whole models against the plain backend."""

import math
from dataclasses import replace

import pytest
import torch
from small_models import EVERY_TRANSFORMER, moved, transformer

from tfm.backends import products_cpu
from tfm.backends.decoding_cpu import CpuCache
from tfm.backends.inference_cpu import CpuInference
from tfm.backends.plain import PLAIN_INFERENCE
from tfm.backends.products_cpu import LARGE_WEIGHT, prepack_bf16, prepack_fp32, prepack_int8
from tfm.config import SearchConfig
from tfm.machine.cpu import this_cpu
from tfm.model.cache import DecoderCache
from tfm.search.search import search
from tfm.vocabulary.subword import BOS, EOS

V = 70
NEEDS_INT8 = pytest.mark.skipif(
    not products_cpu.HAS_INT8, reason="needs a torch with int8 products of oneDNN"
)
# The function that prepacks, the dtype of activations, and the largest relative error.
ARITHMETICS = [
    pytest.param(prepack_fp32, torch.float32, 1e-5, id="fp32"),
    pytest.param(prepack_bf16, torch.bfloat16, 1e-2, id="bf16", marks=pytest.mark.needs_bf16),
    pytest.param(prepack_int8, torch.float32, 3e-2, id="int8", marks=NEEDS_INT8),
]
EVERY_ARITHMETIC = pytest.mark.parametrize(("prepack", "dtype", "max_error"), ARITHMETICS)


@pytest.fixture(params=[1, 2])
def each_number_of_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@EVERY_ARITHMETIC
@pytest.mark.parametrize(
    ("num_rows", "width", "num_outputs"),
    [
        (1, 8, 5),
        (4, 24, 70),
        (37, 256, 33),
        (200, 128, 31),
        (400, 256, 33),
        (5, 16, LARGE_WEIGHT // 16),
        (1100, 64, LARGE_WEIGHT // 64),
    ],
)
@pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
@pytest.mark.usefixtures("each_number_of_threads")
def test_linear_layers_are_those_of_float64_within_rounding(
    monkeypatch, vendor, num_rows, width, num_outputs, prepack, dtype, max_error
):
    cpu = replace(this_cpu(), vendor=vendor)
    monkeypatch.setattr(products_cpu, "this_cpu", lambda: cpu)
    torch.manual_seed(0)
    # x is not contiguous.
    x, weight = torch.randn(num_rows, width + 3)[:, 3:], torch.randn(num_outputs, width)
    bias = torch.randn(num_outputs)
    exact = x.double() @ weight.double().T
    backend = CpuInference(prepack, dtype)
    with torch.inference_mode():
        results = {
            exact: backend.prepacked(weight, None)(x, False),
            exact + bias: backend.prepacked(weight, bias)(x, False),
            (exact + bias).relu(): backend.prepacked(weight, bias)(x, True),
        }
    for expected, found in results.items():
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert (found - expected).norm() <= max_error * exact.norm()


@NEEDS_INT8
@pytest.mark.parametrize("num_rows", [1, 4, 37, 100])
def test_int8_products_of_large_numbers_do_not_overflow(num_rows):
    """A CPU without int8 units adds two products in 16 bits."""
    x, weight = torch.ones(num_rows, 64), torch.ones(48, 64)
    with torch.inference_mode():
        found = prepack_int8(weight, None)(x, False)
    torch.testing.assert_close(found, torch.full((num_rows, 48), 64.0), rtol=0.01, atol=0)


def test_with_limited_sizes_only_rounded_numbers_of_rows_are_computed():
    sizes = set()

    def prepack(weight, bias):
        linear = prepack_fp32(weight, bias)
        return lambda x, relu: sizes.add(x.numel() // x.size(-1)) or linear(x, relu)

    backend = CpuInference(prepack, torch.float32, limit_sizes=True)
    weight, bias = torch.randn(5, 8), torch.randn(5)
    linear = backend.prepacked(weight, bias)
    with torch.inference_mode():
        for shape in [(num_rows, 8) for num_rows in range(1, 200)] + [(3, 37, 8), (1, 1, 8)]:
            x = torch.randn(shape)
            torch.testing.assert_close(linear(x, False), x @ weight.T + bias)
    assert {backend.round_up_rows(size) for size in sizes} == sizes
    assert len(sizes) < 50


@pytest.mark.parametrize("per_query", [None, False, True])
@pytest.mark.parametrize(
    ("query_dtype", "key_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize("cache", [DecoderCache, CpuCache])
def test_attention_of_few_queries_equals_the_formula(cache, query_dtype, key_dtype, per_query):
    torch.manual_seed(0)
    groups, num_heads, num_queries, num_keys = 3, 2, 4, 40
    query = torch.randn(groups, num_heads, num_queries, 6).to(query_dtype)
    key, value = (
        torch.randn(groups, num_heads, num_keys, width, dtype=key_dtype) for width in (6, 5)
    )
    scores = query.double() @ key.double().mT / 6**0.5
    attention_bias = None
    if per_query is not None:
        is_hidden = torch.rand(groups, num_queries if per_query else 1, num_keys) < 0.5
        is_hidden[..., 7] = False
        attention_bias = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
        scores = scores + attention_bias[:, None]
    expected = (scores.softmax(dim=-1) @ value.double()).transpose(1, 2)
    found = cache.attend(query, key.mT, value, attention_bias, None)
    torch.testing.assert_close(found, expected.reshape(groups * num_queries, -1).to(query_dtype))


def new_transformer(**changes):
    shape = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 32, "d_ff": 64}
    return moved(transformer(V, **shape, **changes), 0.5, 1.0)


def new_batch(num_sentences=4):
    torch.manual_seed(1)
    lengths = torch.tensor([9, 4, 1, 7][:num_sentences])
    source = torch.randint(4, V, (num_sentences, 9))
    source[torch.arange(num_sentences), lengths - 1] = EOS
    return source, lengths


def step_log_probs(model, backend, num_sentences=4):
    """Return [N, V] log probabilities of several steps, of all hypotheses and of some."""
    torch.manual_seed(2)
    log_probs = []
    model = backend.optimized(model)
    with torch.inference_mode():
        state = model.start(*new_batch(num_sentences))
        tokens = torch.full((num_sentences, 1), BOS)
        for step in range(5):
            rows = torch.randperm(tokens.numel())[:6].sort().values if step > 2 else None
            if rows is None:
                logits = model.step(tokens, state).float()
            else:
                logits = model.step_rows(tokens, state, rows)(slice(None)).float()
            assert logits[..., V:].eq(-math.inf).all()  # of a padded vocabulary
            log_probs.append(logits.log_softmax(dim=-1)[..., :V].reshape(-1, V))
            if rows is None:
                parents = torch.randint(tokens.size(1), (num_sentences, 5))
                state.reorder(torch.arange(num_sentences)[:, None] * tokens.size(1) + parents)
                tokens = torch.randint(4, V, (num_sentences, 5))
    return torch.cat(log_probs)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize(
    ("prepack", "dtype", "max_difference"),
    [
        pytest.param(prepack_fp32, torch.float32, 1e-5, id="fp32"),
        pytest.param(prepack_bf16, torch.bfloat16, 0.1, id="bf16", marks=pytest.mark.needs_bf16),
        pytest.param(prepack_int8, torch.float32, 0.15, id="int8", marks=NEEDS_INT8),
    ],
)
@pytest.mark.parametrize("num_sentences", [4, 1])
def test_log_probabilities_of_models_are_close_to_the_plain_ones(
    changes, prepack, dtype, max_difference, num_sentences
):
    model = new_transformer(**changes)
    backend = CpuInference(prepack, dtype, limit_sizes=True)
    found, expected = (
        step_log_probs(model, each, num_sentences) for each in (backend, PLAIN_INFERENCE)
    )
    assert found.isfinite().all()
    assert (found - expected).abs().max() <= max_difference
    # The log probabilities must differ from each other more than from the plain ones.
    assert expected.std(dim=0).mean() > 2 * (found - expected).std()


@pytest.mark.parametrize("num_sentences", [4, 1])
@pytest.mark.parametrize("limit_sizes", [True, False])
@EVERY_TRANSFORMER
def test_in_fp32_beam_search_equals_that_of_the_plain_backend(changes, limit_sizes, num_sentences):
    model = new_transformer(**changes)
    config = SearchConfig(beam_size=4, n_best=3, max_extra_length=8)
    results = []
    for backend in (
        CpuInference(prepack_fp32, torch.float32, limit_sizes=limit_sizes),
        PLAIN_INFERENCE,
    ):
        with torch.inference_mode():
            optimized = backend.optimized(model)
            results.append(search(optimized, *new_batch(num_sentences), config))
    for found, expected in zip(*results, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


def test_optimizing_leaves_the_model_in_training_and_unchanged():
    model = new_transformer().train()
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    optimized = CpuInference(prepack_fp32, torch.float32).optimized(model)
    assert list(model.modules()) == modules
    assert all(module.training for module in modules)
    assert not any(module.training for module in optimized.modules())
    shared = dict(optimized.named_parameters())
    assert list(shared) == list(parameters)
    assert all(shared[name] is parameter for name, parameter in parameters.items())


@pytest.mark.parametrize("num_sentences", [4, 1])
def test_given_outputs_have_the_plain_hidden_states(num_sentences):
    model = new_transformer()
    source, lengths = new_batch(num_sentences)
    target = torch.randint(4, V, (num_sentences, 6))
    with torch.inference_mode():
        found, expected = (
            backend.optimized(model)(source, lengths, target)
            for backend in (CpuInference(prepack_fp32, torch.float32), PLAIN_INFERENCE)
        )
    torch.testing.assert_close(found, expected)
