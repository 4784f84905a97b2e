"""Every Triton kernel against its reference in float64: on a GPU or in Triton's interpreter.

The interpreter multiplies bf16 matrices wrongly, so attention in bf16 is tested on a GPU only; its
code is the same as in fp16.
"""

import plain_kernels
import pytest
import torch
from triton_device import DEVICE, FP32_ERROR

from tfm.backends import slot_attention, token_blocks
from tfm.backends.cross_entropy import PADDING
from tfm.backends.cuda_graphs import recorded
from tfm.backends.packing import attention_spans
from tfm.backends.triton import cross_entropy as cross_entropy_triton
from tfm.backends.triton import packed_attention as packed_attention_triton
from tfm.backends.triton import slot_attention as slot_attention_triton
from tfm.backends.triton import token_blocks as token_blocks_triton

# Largest error relative to the largest element. The interpreter truncates bf16; GPUs round it.
ERRORS = {torch.float32: FP32_ERROR, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LENGTHS = [5, 40, 0, 70, 13]
KEY_LENGTHS = [30, 4, 0, 2, 50]
SPARE = 9

ON_CPU = DEVICE.type == "cpu"
needs_gpu = pytest.mark.skipif(ON_CPU, reason="the interpreter multiplies bf16 wrongly")
MATMUL_DTYPES = [*DTYPES[:2], pytest.param(torch.bfloat16, marks=needs_gpu)]


def assert_close(found, expected, dtype):
    for ours, theirs in zip(found, expected, strict=True):
        difference = (ours.detach().double() - theirs.detach().double()).abs().max()
        assert float(difference) <= ERRORS[dtype] * float(theirs.detach().abs().max())


def new_spans(lengths, key_lengths, *, causal=False):
    # Capacity for more sentences than there are.
    offsets, key_offsets = (
        torch.tensor([0, *torch.tensor(x).cumsum(0), sum(x)], device=DEVICE).int()
        for x in (lengths, key_lengths)
    )
    num_queries, num_keys = (sum(x) + SPARE for x in (lengths, key_lengths))
    return attention_spans(
        offsets, key_offsets, num_queries=num_queries, num_keys=num_keys, causal=causal
    )


def random_tensor(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=DEVICE, dtype=dtype)


def result_and_gradients(function, inputs, *, dtype, **options):
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    result = function(inputs, **options)
    gradient = random_tensor(*result.shape, dtype=torch.float32, seed=9).to(result.dtype)
    return result, *torch.autograd.grad(result, inputs, gradient)


def check_attention(
    lengths, key_lengths, *, dtype, widths=(16, 16), heads=2, num_tensors=3, causal=False
):
    spans = new_spans(lengths, key_lengths, causal=causal)
    shapes = {
        3: [
            (len(spans.keys), heads, widths[0]),
            (len(spans.queries), heads, widths[0]),
            (len(spans.queries), heads, widths[1]),
        ],
        1: [(len(spans.keys), 3, heads, widths[0])],
        2: [
            (len(spans.keys), heads, widths[0]),
            (len(spans.queries), 2, heads, widths[0]),
        ],
    }[num_tensors]
    inputs = [random_tensor(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    for dropout in (0.0, 0.1):
        options = {"spans": spans, "dropout": dropout, "seed": torch.tensor([77], device=DEVICE)}
        assert_close(
            result_and_gradients(
                packed_attention_triton.packed_attention, inputs, dtype=dtype, **options
            ),
            result_and_gradients(
                plain_kernels.packed_attention, inputs, dtype=torch.float64, **options
            ),
            dtype,
        )


@pytest.mark.parametrize("dtype", MATMUL_DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_its_reference_with_and_without_dropout(dtype, causal):
    check_attention(LENGTHS, LENGTHS, dtype=dtype, causal=causal)


@pytest.mark.parametrize("dtype", MATMUL_DTYPES)
def test_cross_attention_equals_its_reference_with_and_without_dropout(dtype):
    check_attention(LENGTHS, KEY_LENGTHS, dtype=dtype)


@pytest.mark.parametrize("widths", [(24, 40), (8, 5), (160, 16)])
def test_attention_supports_heads_of_any_width(widths):
    check_attention([20, 3], [9, 30], dtype=torch.float32, widths=widths, heads=3)


def test_attention_supports_a_sentence_of_several_tiles():
    check_attention([3, 200], [3, 200], dtype=torch.float32, causal=True)


@pytest.mark.parametrize("num_tensors", [1, 2])
def test_attention_of_joint_projections_equals_its_reference(num_tensors):
    check_attention(LENGTHS, LENGTHS, dtype=torch.float32, num_tensors=num_tensors)


def test_attention_ignores_padding_and_yields_zeros_there():
    spans = new_spans(LENGTHS, LENGTHS)
    inputs = [random_tensor(len(spans.keys), 2, 16, dtype=torch.float32, seed=0) for _ in range(3)]
    for x in inputs:
        x[sum(LENGTHS) :] = torch.nan
    attended, *gradients = result_and_gradients(
        packed_attention_triton.packed_attention,
        inputs,
        dtype=torch.float32,
        spans=spans,
        dropout=0.0,
        seed=None,
    )
    assert attended.isfinite().all()
    assert not attended[sum(LENGTHS) :].any()
    for grad in gradients:
        assert grad.isfinite().all()
        assert not grad[sum(LENGTHS) :].any()


def test_attention_refuses_spans_of_the_wrong_size_and_heads_that_are_too_wide():
    spans = new_spans([4], [4])
    short = random_tensor(3, 1, 16, dtype=torch.float32, seed=0)
    with pytest.raises(ValueError, match="3 rows of queries"):
        packed_attention_triton.packed_attention([short] * 3, spans, dropout=0.0, seed=None)
    wide = random_tensor(4 + SPARE, 1, 600, dtype=torch.float32, seed=0)
    with pytest.raises(ValueError, match="2400 bytes"):
        packed_attention_triton.packed_attention([wide] * 3, spans, dropout=0.0, seed=None)


def new_slots(
    *, num_hypotheses, num_columns, dtype, heads=2, widths=(16, 16), with_ancestors=False
):
    """Return query, key, value, ends and ancestors of four slots with unused columns."""
    query_width, key_width, value_width = heads * widths[0], heads * widths[0], heads * widths[1]
    joined = random_tensor(4 * num_hypotheses, query_width + 7, dtype=dtype, seed=0)
    query = joined[:, :query_width].view(4, num_hypotheses, heads, -1)
    cache = random_tensor(4, num_columns, key_width + value_width, dtype=dtype, seed=1)
    key, value = (
        x.view(4, num_columns, heads, -1)
        for x in torch.split(cache, [key_width, value_width], dim=2)
    )
    if not with_ancestors:
        return query, key, value, torch.tensor([1, num_columns - 9, 17, 3], device=DEVICE), None
    capacity = num_columns // num_hypotheses
    generator = torch.Generator().manual_seed(2)
    ancestors = torch.randint(
        num_hypotheses, (4, num_hypotheses, capacity), generator=generator, dtype=torch.int16
    )
    ends = torch.tensor([1, capacity - 2, 2, capacity], device=DEVICE)
    return query, key, value, ends, ancestors.to(DEVICE)


def check_slots(slots, dtype):
    query, key, value, ends, ancestors = slots
    assert_close(
        [slot_attention_triton.slot_attention(*slots)],
        [
            slot_attention.slot_attention(
                query.double(), key.double(), value.double(), ends, ancestors
            )
        ],
        dtype,
    )


@pytest.mark.parametrize("dtype", MATMUL_DTYPES)
@pytest.mark.parametrize("num_hypotheses", [1, 5, 64])
@pytest.mark.parametrize("with_ancestors", [False, True])
def test_slot_attention_equals_its_reference(dtype, num_hypotheses, with_ancestors):
    num_columns = 7 * num_hypotheses if with_ancestors and num_hypotheses > 1 else 80
    check_slots(
        new_slots(
            num_hypotheses=num_hypotheses,
            num_columns=num_columns,
            dtype=dtype,
            with_ancestors=with_ancestors,
        ),
        dtype,
    )


@pytest.mark.parametrize("widths", [(24, 40), (8, 5), (256, 256)])
@pytest.mark.parametrize("with_ancestors", [False, True])
def test_slot_attention_supports_heads_of_any_width(widths, with_ancestors):
    # Tiles of the widest heads have 16 columns and hypotheses.
    slots = new_slots(
        num_hypotheses=20,
        num_columns=100,
        dtype=torch.float32,
        heads=3,
        widths=widths,
        with_ancestors=with_ancestors,
    )
    check_slots(slots, torch.float32)


@pytest.mark.parametrize("with_ancestors", [False, True])
def test_slot_attention_does_not_read_beyond_the_ends(with_ancestors):
    slots = new_slots(
        num_hypotheses=3, num_columns=90, dtype=torch.float32, with_ancestors=with_ancestors
    )
    _query, key, value, ends, ancestors = slots
    ends[0] = 0
    expected = slot_attention_triton.slot_attention(*slots)
    for slot, end in enumerate(ends.tolist()):
        used = end * 3 if with_ancestors else end
        key[slot, used:] = torch.nan
        value[slot, used:] = torch.nan
        if with_ancestors:
            ancestors[slot, :, end:] = 999
    attended = slot_attention_triton.slot_attention(*slots)
    assert torch.equal(attended, expected)
    assert not attended[0].any()
    assert attended[1:].all()


def test_slot_attention_does_not_read_beyond_the_capacity():
    slots = new_slots(num_hypotheses=3, num_columns=60, dtype=torch.float32)
    query, key, value, ends, _ancestors = slots
    too_far = torch.full_like(ends, 70)
    attended = slot_attention_triton.slot_attention(query, key, value, too_far)
    full = slot_attention_triton.slot_attention(query, key, value, torch.full_like(ends, 60))
    assert torch.equal(attended, full)


def test_slot_attention_refuses_ancestors_of_the_wrong_size_and_heads_that_are_too_wide():
    query, key, value, ends, ancestors = new_slots(
        num_hypotheses=3, num_columns=60, dtype=torch.float32, with_ancestors=True
    )
    with pytest.raises(ValueError, match=r"ancestors of shape \[4, 3, 19\]"):
        slot_attention_triton.slot_attention(query, key, value, ends, ancestors[:, :, 1:])
    wide = random_tensor(1, 1, 1, 600, dtype=torch.float32, seed=0)
    with pytest.raises(ValueError, match="2400 bytes"):
        slot_attention_triton.slot_attention(wide, wide, wide, ends[:1])


@pytest.mark.skipif(ON_CPU, reason="a CPU has no CUDA graphs")
def test_slot_attention_in_a_cuda_graph_follows_ends_and_ancestors():
    slots = new_slots(num_hypotheses=5, num_columns=100, dtype=torch.float32, with_ancestors=True)
    attended = torch.empty_like(slots[0])
    replay = recorded(lambda: attended.copy_(slot_attention_triton.slot_attention(*slots)), DEVICE)
    *_inputs, ends, ancestors = slots
    ends.add_(2).clamp_(max=20)
    ancestors.copy_(ancestors.flip(1))
    replay()
    assert torch.equal(attended, slot_attention_triton.slot_attention(*slots))


# The interpreter warns of rows with all logits -inf.
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 1, 64), (2, 125, 64), (3, 200, 74), (2, 300, 33), (0, 4, 64)]
)
def test_token_blocks_equal_their_reference(dtype, shape):
    logits = 5 * random_tensor(*shape, dtype=dtype, seed=0)
    if len(logits):
        logits[0, :, ::3] = -torch.inf
        logits[0, -1] = -torch.inf
        logits[1] = -torch.inf
    block_max, logsumexp = token_blocks_triton.block_max_and_logsumexp(logits)
    exact_max, exact_logsumexp = token_blocks.block_max_and_logsumexp(logits.double())
    assert (block_max.dtype, logsumexp.dtype) == (torch.float32, torch.float32)
    assert torch.equal(block_max.double(), exact_max)
    torch.testing.assert_close(logsumexp.double(), exact_logsumexp, rtol=FP32_ERROR, atol=2e-6)


@pytest.mark.parametrize("level", [-1e4, 1e4])
def test_token_blocks_of_extreme_logits_keep_their_differences(level):
    logits = random_tensor(2, 150, 64, dtype=torch.float32, seed=0) + level
    found, expected = (
        module.block_max_and_logsumexp(x)[1].double()
        for module, x in ((token_blocks_triton, logits), (token_blocks, logits.double()))
    )
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=0.0)


def test_token_blocks_with_a_nan_logit_have_a_nan_logsumexp():
    logits = random_tensor(2, 150, 64, dtype=torch.float32, seed=0)
    logits[1, 70, 3] = torch.nan
    for module in (token_blocks_triton, token_blocks):
        assert module.block_max_and_logsumexp(logits)[1].isnan().tolist() == [False, True]


def test_token_blocks_may_be_views_of_wider_rows():
    joined = random_tensor(3, 700, dtype=torch.float32, seed=0)
    joined[:, 640:] = torch.nan
    logits = joined[:, :640].unflatten(1, (10, 64))
    for found, expected in zip(
        token_blocks_triton.block_max_and_logsumexp(logits),
        token_blocks_triton.block_max_and_logsumexp(logits.contiguous()),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [5, 37, 5000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_its_reference(dtype, vocab_size, smoothing):
    logits = 3 * random_tensor(9, vocab_size, dtype=dtype, seed=0)
    logits[3] = torch.nan  # padding may hold NaN
    targets = torch.arange(9, device=DEVICE) % vocab_size
    targets[3] = PADDING
    exact = logits.double()
    found = cross_entropy_triton.cross_entropy_(logits, targets, smoothing=smoothing)
    expected = plain_kernels.cross_entropy_(exact, targets, smoothing=smoothing)
    assert_close(found, expected, torch.float32)
    assert_close([logits], [exact], dtype)


def test_cross_entropy_does_not_write_between_rows():
    joined = random_tensor(4, 50, dtype=torch.float32, seed=0)
    before = joined.clone()
    targets = torch.tensor([1, 2, 3, 4], device=DEVICE)
    cross_entropy_triton.cross_entropy_(joined[:, :40], targets, smoothing=0.1)
    assert torch.equal(joined[:, 40:], before[:, 40:])
    assert not torch.equal(joined[:, :40], before[:, :40])


def test_torch_compile_supports_the_kernels():
    offsets = torch.tensor([0, 5, 20], device=DEVICE).int()
    seeds = torch.tensor([3], device=DEVICE)

    def layer(projections):
        spans = attention_spans(offsets, offsets, num_queries=24, num_keys=24, causal=True)
        return packed_attention_triton.packed_attention(projections, spans, dropout=0.1, seed=seeds)

    inputs = [random_tensor(24, 3, 2, 16, dtype=torch.float32, seed=0)]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = (
        result_and_gradients(function, inputs, dtype=torch.float32)
        for function in (compiled, layer)
    )
    assert_close(found, expected, torch.float32)
