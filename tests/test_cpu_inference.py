"""Products made ready for inference: against float64, and whole models against plain ones."""

import pytest
import torch

from tfm.backends import cpu_inference
from tfm.backends.cpu_inference import (
    CpuInferenceBackend,
    prepack_bf16,
    prepack_fp32,
    prepack_int8,
)
from tfm.backends.plain import PLAIN
from tfm.config import SearchConfig, TransformerConfig
from tfm.data.subword import BOS, EOS
from tfm.model.build import EvaluationMode, new_model
from tfm.search.beam import beam_search

V = 70
NEEDS_INT8 = pytest.mark.skipif(
    not cpu_inference.HAS_INT8, reason="needs a torch with int8 products of oneDNN"
)
# How to make weights ready, the type of activations, and the greatest error by the norm.
KINDS = [
    pytest.param(prepack_fp32, torch.float32, 1e-5, id="fp32"),
    pytest.param(prepack_bf16, torch.bfloat16, 1e-2, id="bf16", marks=pytest.mark.needs_bf16),
    pytest.param(prepack_int8, torch.float32, 3e-2, id="int8", marks=NEEDS_INT8),
]
EVERY_KIND = pytest.mark.parametrize(("make_ready", "dtype", "most_error"), KINDS)
MODELS = [
    {},
    {"norm": "pre"},
    {"attention": "additive"},
    {"attention_window": 3},
    {"learned_positions": 20},
    {"d_k": 8, "d_v": 24},
    {"tied_embeddings": "none"},
]


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@EVERY_KIND
@pytest.mark.parametrize(
    ("num_rows", "width", "num_outputs"),
    [(1, 8, 5), (4, 24, 70), (8, 64, 256), (37, 256, 33), (200, 128, 1)],
)
def test_products_are_those_of_float64_but_for_rounding(
    num_rows, width, num_outputs, make_ready, dtype, most_error
):
    torch.manual_seed(0)
    # Part of a larger tensor, which is not contiguous.
    x, weight = torch.randn(num_rows, width + 3)[:, 3:], torch.randn(num_outputs, width)
    bias, residual = torch.randn(num_outputs), torch.randn(num_rows, num_outputs)
    exact = x.double() @ weight.double().T
    results = {
        exact: lambda ops: ops.project(x, weight),
        exact + bias: lambda ops: ops.linear(x, weight, bias),
        (exact + bias).relu(): lambda ops: ops.linear_relu_dropout(x, weight, bias, 0.0),
        exact + bias + residual: lambda ops: ops.add_linear_dropout(residual, x, weight, bias, 0.0),
    }
    for expected, operation in results.items():
        with torch.inference_mode():
            found = operation(CpuInferenceBackend(make_ready, dtype))
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert (found - expected).norm() <= most_error * exact.norm()


@NEEDS_INT8
@pytest.mark.parametrize("num_rows", [1, 4, 37])
def test_sums_of_large_int8_products_do_not_overflow(num_rows):
    """As they would in 16 bits, which a CPU without units for int8 adds two products up in."""
    x, weight = torch.ones(num_rows, 64), torch.ones(48, 64)
    with torch.inference_mode():
        found = CpuInferenceBackend(prepack_int8, torch.float32).project(x, weight)
    torch.testing.assert_close(found, torch.full((num_rows, 48), 64.0), rtol=0.01, atol=0)


def test_products_meet_no_more_sizes_than_rows_are_rounded_to():
    seen = set()

    def make_ready(weight, bias):
        product = prepack_fp32(weight, bias)
        return lambda x, relu: seen.add(x.numel() // x.size(-1)) or product(x, relu)

    backend = CpuInferenceBackend(make_ready, torch.float32, keeps_sizes=True)
    weight, bias = torch.randn(5, 8), torch.randn(5)
    with torch.inference_mode():
        for shape in [(num_rows, 8) for num_rows in range(1, 200)] + [(3, 37, 8), (1, 1, 8)]:
            x = torch.randn(shape)
            torch.testing.assert_close(backend.linear(x, weight, bias), x @ weight.T + bias)
    assert {backend.round_up_rows(size) for size in seen} == seen
    assert len(seen) < 50


@EVERY_KIND
def test_rows_and_columns_of_a_weight_of_zeros_are_no_trouble(make_ready, dtype, most_error):
    backend = CpuInferenceBackend(make_ready, dtype)
    bias = torch.tensor([1.0, -2.0, 0.5])
    with torch.inference_mode():
        found = backend.linear(torch.randn(4, 8), torch.zeros(3, 8), bias)
        of_nothing = backend.linear(torch.zeros(4, 8), torch.randn(3, 8), bias)
    for each in (found, of_nothing):
        assert each.float().tolist() == [bias.tolist()] * 4


@EVERY_KIND
def test_parts_of_a_weight_are_weights_of_their_own(make_ready, dtype, most_error):
    """As the projections to queries, and to keys and values, are of that to all of them."""
    torch.manual_seed(0)
    backend = CpuInferenceBackend(make_ready, dtype)
    x, weight, bias = torch.randn(6, 32), torch.randn(48, 32), torch.randn(48)
    with torch.inference_mode():
        for part in (slice(None), slice(16), slice(16, None), slice(32), slice(None)):
            exact = x.double() @ weight[part].double().T + bias[part]
            found = backend.linear(x, weight[part], bias[part])
            assert error(found, exact) <= most_error


@EVERY_KIND
def test_dropout_is_refused(make_ready, dtype, most_error):
    backend = CpuInferenceBackend(make_ready, dtype)
    x, weight, bias = torch.randn(2, 3), torch.randn(3, 3), torch.randn(3)
    for attempt in (
        lambda: backend.dropout(x, 0.1),
        lambda: backend.linear_relu_dropout(x, weight, bias, 0.1),
        lambda: backend.add_linear_dropout(x, x, weight, bias, 0.1),
    ):
        with pytest.raises(ValueError, match="no dropout"):
            attempt()
    assert backend.dropout(x, 0.0) is x


def test_rows_to_compute_are_never_fewer_and_rarely_many_more_and_few_numbers_do():
    needed = range(1, 5_000)
    for keeps_sizes in (True, False):
        backend = CpuInferenceBackend(prepack_fp32, torch.float32, keeps_sizes=keeps_sizes)
        numbers = [backend.round_up_rows(rows) for rows in needed]
        assert all(
            rows <= number <= max(8, rows * 1.25)
            for rows, number in zip(needed, numbers, strict=True)
        )
        assert numbers == sorted(numbers)
        assert [backend.round_up_rows(number) for number in numbers] == numbers
        assert len(set(numbers)) < 100 or not keeps_sizes
    assert backend.round_up_rows(4_999) == 4_999


@pytest.mark.parametrize("for_each_query", [None, False, True])
@pytest.mark.parametrize(
    ("query_type", "key_type"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize(
    "backend", [CpuInferenceBackend(prepack_fp32, torch.float32), PLAIN], ids=["inference", "plain"]
)
def test_attention_of_few_queries_is_the_formula(backend, query_type, key_type, for_each_query):
    torch.manual_seed(0)
    groups, num_heads, num_queries, num_keys = 3, 2, 4, 40
    query = torch.randn(groups, num_heads, num_queries, 6).to(query_type)
    key, value = (
        torch.randn(groups, num_heads, num_keys, width, dtype=key_type) for width in (6, 5)
    )
    scores = query.double() @ key.double().mT / 6**0.5
    attention_bias = None
    if for_each_query is not None:
        is_hidden = torch.rand(groups, 1, num_queries if for_each_query else 1, num_keys) < 0.5
        is_hidden[..., 7] = False
        attention_bias = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
        scores = scores + attention_bias
    expected = (scores.softmax(dim=-1) @ value.double()).transpose(1, 2)
    found = backend.attend(query, key.mT, value, attention_bias)
    torch.testing.assert_close(found, expected.reshape(groups * num_queries, -1).to(query_type))


# --- whole models


def transformer(**changes):
    torch.manual_seed(0)
    config = TransformerConfig(
        **{
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "d_model": 32,
            "d_ff": 64,
            "num_heads": 2,
            **changes,
        }
    )
    model = new_model(config, source_vocab_size=V, target_vocab_size=V)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    return model


def new_batch(num_sentences=4):
    torch.manual_seed(1)
    lengths = torch.tensor([9, 4, 1, 7][:num_sentences])
    source = torch.randint(4, V, (num_sentences, 9))
    source[torch.arange(num_sentences), lengths - 1] = EOS
    return source, lengths


def stepped(model, backend, num_sentences=4):
    """[…, V] log probabilities of several steps, of all hypotheses and of some."""
    torch.manual_seed(2)
    found = []
    with EvaluationMode([model], backend), torch.inference_mode():
        state = model.start(*new_batch(num_sentences))
        tokens = torch.full((num_sentences, 1), BOS)
        for step in range(5):
            rows = torch.randperm(tokens.numel())[:6].sort().values if step > 2 else None
            found.append(model.step(tokens, state, rows).float().log_softmax(dim=-1).view(-1, V))
            if rows is None:
                parents = torch.randint(tokens.size(1), (num_sentences, 5))
                state.reorder(torch.arange(num_sentences)[:, None] * tokens.size(1) + parents)
                tokens = torch.randint(4, V, (num_sentences, 5))
    return torch.cat(found)


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize(
    ("make_ready", "dtype", "most_difference"),
    [
        pytest.param(prepack_fp32, torch.float32, 1e-5, id="fp32"),
        pytest.param(prepack_bf16, torch.bfloat16, 0.1, id="bf16", marks=pytest.mark.needs_bf16),
        pytest.param(prepack_int8, torch.float32, 0.15, id="int8", marks=NEEDS_INT8),
    ],
)
@pytest.mark.parametrize("num_sentences", [4, 1])
def test_a_models_log_probabilities_are_near_the_plain_ones(
    changes, make_ready, dtype, most_difference, num_sentences
):
    model = transformer(**changes)
    backend = CpuInferenceBackend(make_ready, dtype, keeps_sizes=True)
    found, expected = (stepped(model, each, num_sentences) for each in (backend, PLAIN))
    assert found.isfinite().all()
    assert (found - expected).abs().max() <= most_difference
    # Not for being all alike.
    assert expected.std(dim=0).mean() > 2 * (found - expected).std()


@pytest.mark.parametrize("num_sentences", [4, 1])
@pytest.mark.parametrize("keeps_sizes", [True, False])
@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_in_fp32_beam_search_finds_what_it_finds_with_plain_operations(
    changes, keeps_sizes, num_sentences
):
    model = transformer(**changes)
    config = SearchConfig(beam_size=4, n_best=3, max_extra_length=8)
    results = []
    for backend in (
        CpuInferenceBackend(prepack_fp32, torch.float32, keeps_sizes=keeps_sizes),
        PLAIN,
    ):
        with EvaluationMode([model], backend), torch.inference_mode():
            results.append(beam_search(model, *new_batch(num_sentences), config))
    for found, expected in zip(*results, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


def test_each_weight_is_made_ready_once():
    made = []

    def make_ready(weight, bias):
        made.append((weight.data_ptr(), len(weight)))
        return prepack_fp32(weight, bias)

    model = transformer()
    backend = CpuInferenceBackend(make_ready, torch.float32)
    first, second = stepped(model, backend), stepped(model, backend)
    assert torch.equal(first, second)
    assert len(made) == len(set(made)) > 0
