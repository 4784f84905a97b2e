"""Maxima of blocks and logsumexp of rows, against torch's amax and logsumexp."""

import math

import pytest
import torch

from tfm.search import token_blocks
from tfm.search.token_blocks import block_max_and_logsumexp


def random_logits(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return (5 * torch.randn(shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("chunk_elements", [1, 2 * 7 * 64, 1 << 18])
def test_results_equal_amax_and_logsumexp_for_any_chunk_size(dtype, chunk_elements, monkeypatch):
    monkeypatch.setattr(token_blocks, "_CHUNK_ELEMENTS", chunk_elements)
    logits = random_logits(5, 7, 64, dtype=dtype)
    before = logits.clone()
    block_max, logsumexp = block_max_and_logsumexp(logits)
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    assert (block_max.dtype, logsumexp.dtype) == (precision, precision)
    assert torch.equal(block_max, logits.amax(dim=2).to(precision))
    torch.testing.assert_close(logsumexp, logits.to(precision).flatten(1).logsumexp(dim=1))
    assert torch.equal(logits, before)


def test_forbidden_tokens_and_blocks_do_not_count():
    logits = random_logits(2, 3, 37)
    logits[0, 1] = -math.inf
    logits[1, :, 5:] = -math.inf
    block_max, logsumexp = block_max_and_logsumexp(logits)
    assert block_max[0, 1] == -math.inf
    torch.testing.assert_close(logsumexp, logits.flatten(1).logsumexp(dim=1))


def test_a_row_of_forbidden_tokens_has_a_logsumexp_of_minus_infinity():
    logits = random_logits(3, 4, 32)
    logits[1] = -math.inf
    block_max, logsumexp = block_max_and_logsumexp(logits)
    assert block_max[1].eq(-math.inf).all()
    assert logsumexp.tolist()[1] == -math.inf
    assert logsumexp[[0, 2]].isfinite().all()


def test_zero_rows_give_empty_results():
    block_max, logsumexp = block_max_and_logsumexp(random_logits(0, 4, 32))
    assert (block_max.shape, logsumexp.shape) == ((0, 4), (0,))
