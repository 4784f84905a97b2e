"""Packed batches: indices to and from padded batches and heads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfm.model.packing import Packing

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def new_packing(lengths, spare=3):
    return Packing(torch.tensor(lengths), sum(lengths) + spare)


def numbered_rows(packing):
    """Return rows that contain their number, counted from 1; 0 in spare rows."""
    rows = torch.zeros(packing.num_rows, 2, dtype=torch.int64)
    rows[: packing.num_tokens] = torch.arange(1, packing.num_tokens + 1)[:, None]
    return rows


@given(LENGTHS)
def test_pad_moves_each_token_to_its_position_and_a_spare_row_to_padding(lengths):
    packing = new_packing(lengths)
    expected = [position for length in lengths for position in range(length)]
    assert packing.positions.tolist() == [*expected, 0, 0, 0]
    padded = packing.pad(numbered_rows(packing))
    assert padded.shape == (len(lengths), max(lengths), 2)
    sentences = torch.split(torch.arange(1, sum(lengths) + 1), lengths)
    for row, sentence in zip(padded[..., 0], sentences, strict=True):
        assert row.tolist() == [*sentence.tolist(), *[0] * (max(lengths) - len(sentence))]


@given(LENGTHS)
def test_pack_inverts_pad_and_clears_spare_rows(lengths):
    packing = new_packing(lengths)
    padded = packing.pad(numbered_rows(packing))
    padded[padded == 0] = -1  # content at padding must not matter
    assert torch.equal(packing.pack(padded), numbered_rows(packing))


@pytest.mark.parametrize("lengths", [[3], [2, 5, 1]])
def test_pad_and_pack_have_the_gradients_of_a_gather(lengths):
    packing = new_packing(lengths)
    rows = torch.randn(packing.num_rows, 2, dtype=torch.float64, requires_grad=True)
    is_token = packing.pad(torch.arange(packing.num_rows)[:, None] < packing.num_tokens)

    def pad(rows):
        return packing.pad(rows) * is_token

    def pack(rows):
        return packing.pack(pad(rows).sin())[: packing.num_tokens]

    assert torch.autograd.gradcheck(pad, rows)
    assert torch.autograd.gradcheck(pack, rows)


@pytest.mark.parametrize("num_rows", [26, 30, 100])
def test_offsets_delimit_sentences_and_equal_segments_of_spare_rows(num_rows):
    packing = Packing(torch.tensor([9, 8, 4, 3, 1]), num_rows)
    assert packing.offsets.dtype == torch.int32
    assert packing.offsets.tolist()[:6] == [0, 9, 17, 21, 24, 25]
    assert packing.offsets.tolist()[-1] == num_rows
    lengths = packing.offsets.diff()[5:]
    assert len(lengths) == 16
    assert 0 <= lengths.max() - lengths.min() <= 1
    assert packing.longest_segment == packing.offsets.diff().max()


def test_a_packing_without_a_spare_row_is_refused():
    with pytest.raises(ValueError, match="5 tokens need more than 5 rows"):
        new_packing([2, 3], spare=0)


def test_everything_but_the_lengths_is_on_the_device():
    device = torch.device("meta")
    packing = Packing(torch.tensor([2, 3]), 7, device)
    padded = packing.pad(torch.zeros(7, 4, device=device))
    assert padded.shape == (2, 3, 4)
    assert packing.pack(padded).shape == (7, 4)
    indices = [packing.positions, packing.device_lengths]
    assert {x.device for x in [padded, *indices]} == {device}
    assert packing.lengths.device.type == "cpu"
