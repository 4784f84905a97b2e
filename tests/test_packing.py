import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.backends.packing import Packing

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def packing_of(lengths, spare=3):
    return Packing(torch.tensor(lengths), sum(lengths) + spare)


def numbered(packing):
    """Rows that tell their number, from 1; spare ones 0."""
    rows = torch.zeros(packing.num_rows, 2, dtype=torch.int64)
    rows[: packing.num_tokens] = torch.arange(1, packing.num_tokens + 1)[:, None]
    return rows


@given(LENGTHS)
def test_positions_count_from_the_start_of_each_sentence(lengths):
    packing = packing_of(lengths)
    expected = [position for length in lengths for position in range(length)]
    assert packing.positions.tolist() == [*expected, 0, 0, 0]


@settings(deadline=None)
@given(LENGTHS)
def test_spread_puts_each_token_in_its_slot_and_a_spare_row_at_padding(lengths):
    packing = packing_of(lengths)
    padded = packing.pad(numbered(packing))
    assert padded.shape == (len(lengths), max(lengths), 2)
    parts = torch.split(torch.arange(1, sum(lengths) + 1), lengths)
    for row, part in zip(padded[..., 0], parts, strict=True):
        assert row.tolist() == [*part.tolist(), *[0] * (max(lengths) - len(part))]


@settings(deadline=None)
@given(LENGTHS)
def test_gather_is_the_way_back_and_clears_spare_rows(lengths):
    packing = packing_of(lengths)
    padded = packing.pad(numbered(packing))
    padded[padded == 0] = -1  # what stands at padding means nothing
    assert torch.equal(packing.pack(padded), numbered(packing))


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 4), st.integers(1, 3))
def test_pieces_of_rows_find_their_heads_and_the_way_back(lengths, num_heads, num_projections):
    packing = packing_of(lengths)
    pieces = torch.arange(packing.num_rows * num_projections * num_heads)
    heads = pieces[packing.head_rows(num_heads, num_projections)]
    back = heads[packing.head_slots(num_heads, num_projections)].view(packing.num_rows, -1)
    assert torch.equal(back[: packing.num_tokens].flatten(), pieces.view_as(back)[:-3].flatten())
    # Parts come first, then sentences, then heads, then positions.
    num_sentences, length = packing.padded_shape
    assert 0 <= num_sentences - len(lengths) < 8
    assert 0 <= length - max(lengths) < 4
    padded = torch.full((num_sentences, 1, length), packing.num_rows - 1)
    padded[: len(lengths), 0, : max(lengths)] = packing.rows.view(len(lengths), -1)
    padded *= num_projections * num_heads
    for index, part in enumerate(heads.view(num_projections, num_sentences, num_heads, length)):
        own = index * num_heads + torch.arange(num_heads)[:, None]
        assert torch.equal(part, padded + own)


def test_a_packing_without_a_spare_row_is_refused():
    with pytest.raises(ValueError, match="5 tokens need more than 5 rows"):
        packing_of([2, 3], spare=0)


@given(LENGTHS)
def test_offsets_say_where_sentences_start_and_end_whatever_their_capacity(lengths):
    packing = packing_of(lengths)
    offsets = packing.offsets.tolist()
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    assert offsets[: len(starts)] == starts
    assert set(offsets[len(lengths) :]) == {sum(lengths)}
    assert packing_of([1] * len(lengths)).offsets.shape == packing.offsets.shape


def test_spans_are_made_once_for_each_pair_of_packings_and_order():
    queries, keys = packing_of([3, 2]), packing_of([1, 4])
    cross_attention = queries.spans(keys)
    assert cross_attention.keys.tolist() == [[0, 1]] * 3 + [[1, 5]] * 2 + [[0, 0]] * 3
    assert queries.spans(keys) is cross_attention
    self_attention = queries.spans(queries, causal=True)
    assert self_attention.keys[:5].tolist() == [[0, 1], [0, 2], [0, 3], [3, 4], [3, 5]]
    assert queries.spans(queries, causal=True) is self_attention
    assert queries.spans(queries).keys[0].tolist() == [0, 3]


def test_a_packing_goes_with_its_batch():
    packing = packing_of([3, 2])
    packing.spans(packing)
    gone = weakref.ref(packing)
    gc.disable()  # which would find what holds itself, but late
    try:
        del packing
        assert gone() is None
    finally:
        gc.enable()


def test_all_but_the_lengths_is_on_the_device():
    device = torch.device("meta")
    packing = Packing(torch.tensor([2, 3]), 7, device)
    padded = packing.pad(torch.zeros(7, 4, device=device))
    assert padded.shape == (2, 3, 4)
    assert packing.pack(padded).shape == (7, 4)
    made = [packing.positions, packing.offsets, packing.device_lengths, packing.head_rows(2, 3)]
    assert {x.device for x in [padded, *made, packing.spans(packing).keys]} == {device}
    assert packing.lengths.device.type == "cpu"
