"""The best continuations, compared with a softmax and a sort of the whole vocabulary."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfm.search import continuations
from tfm.search.continuations import NextTokens
from tfm.vocabulary.subword import BOS, EOS, PAD, UNK

EXCLUDED = (PAD, BOS, UNK)
# Less than one block, exactly one or two, and more that do not fill the last.
VOCAB_SIZES = [5, 64, 65, 128, 1_001]
ROUNDING = 1e-4


def random_logits(num_rows, vocab_size, *, kind, dtype):
    logits = torch.randn(num_rows, vocab_size) * 2
    if kind == "ties":
        logits = logits.round()
    elif kind == "some impossible":
        logits[torch.rand(logits.shape) < 0.4] = -math.inf
        logits[:, EOS] = 0.5
    elif kind == "extreme":
        logits = torch.where(torch.rand(logits.shape) < 0.5, 200.0, -200.0) + logits
    elif kind == "nearly sure":
        logits[torch.arange(num_rows), torch.randint(vocab_size, (num_rows,))] = 200.0
    return logits.to(dtype)


def new_case(seed, vocab_size, *, kind="plain", dtype=torch.float32, inactive=False):
    """Return logits [R, V], log probabilities [B, K], and rows [R] of the active hypotheses."""
    torch.manual_seed(seed)
    num_sentences, num_hypotheses = (int(torch.randint(1, 6, ())) for _ in range(2))
    log_probs = -torch.rand(num_sentences, num_hypotheses) * 5
    if inactive:
        log_probs[torch.rand(log_probs.shape) < 0.5] = -math.inf
        log_probs[0, -1] = -1.0
    rows = log_probs.flatten().isfinite().nonzero()[:, 0]
    return random_logits(len(rows), vocab_size, kind=kind, dtype=dtype), log_probs, rows


def every_total(logits, log_probs, rows, forced=()):
    """[B, K · V] log probabilities of all continuations, from a softmax in double precision."""
    totals = torch.full((log_probs.numel(), logits.size(1)), -math.inf, dtype=torch.float64)
    totals[rows] = logits.double().log_softmax(dim=1) + log_probs.flatten()[rows, None]
    kept = [(row, token, float(totals[rows[row], token])) for row, token in forced]
    totals[:, list(EXCLUDED)] = -math.inf
    for row, token, total in kept:
        totals[rows[row]] = -math.inf
        totals[rows[row], token] = total
    return totals.view(len(log_probs), -1)


def assert_best(found, expected, *, vocab_size, size):
    """Check that these are the best continuations; any of equally good ones may be chosen."""
    found_totals, parents, tokens = found
    best = expected.topk(min(size, expected.size(1)), dim=1).values
    torch.testing.assert_close(found_totals.double(), best, rtol=0, atol=ROUNDING)
    assert (tokens < vocab_size).all()
    indices = parents * vocab_size + tokens
    is_possible = found_totals.isfinite()
    chosen_totals = expected.gather(1, indices)
    torch.testing.assert_close(
        found_totals[is_possible].double(), chosen_totals[is_possible], rtol=0, atol=ROUNDING
    )
    for row, possible in zip(indices, is_possible, strict=True):
        assert len(row[possible].unique()) == possible.sum()


@pytest.fixture(params=[True, False], ids=["exponentials", "softmax"])
def normalizers(request, monkeypatch):
    """Compute the normalizers of half-precision logits as on some CPUs, and as on others."""
    monkeypatch.setattr(continuations, "has_fast_exp", lambda: request.param)


@pytest.mark.usefixtures("normalizers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["plain", "ties", "some impossible", "extreme", "nearly sure"]),
    inactive=st.booleans(),
    size=st.sampled_from([1, 4, 17]),
    restriction=st.sampled_from(["none", "ruled out", "forced"]),
)
def test_the_best_continuations_are_those_of_a_full_softmax_and_sort(
    vocab_size, dtype, seed, kind, inactive, size, restriction
):
    """A forced token keeps its probability and excludes all others."""
    logits, log_probs, rows = new_case(seed, vocab_size, kind=kind, dtype=dtype, inactive=inactive)
    chosen, forced = (torch.rand(len(rows)) < 0.5).nonzero()[:, 0], []
    next_tokens = NextTokens.of(logits.clone(), EXCLUDED)
    if restriction == "forced":
        tokens = torch.randint(EOS, vocab_size, chosen.shape)
        forced = list(zip(chosen.tolist(), tokens.tolist(), strict=True))
        next_tokens.force(chosen, tokens)
    expected = every_total(logits, log_probs, rows, forced)
    if restriction == "ruled out":
        # The most probable token of some hypotheses, and EOS of all.
        most = logits.index_fill(1, torch.tensor(EXCLUDED), -math.inf).argmax(dim=1)[chosen]
        for each, tokens in ((chosen, most), (torch.arange(len(rows)), torch.tensor(EOS))):
            next_tokens.rule_out(each, tokens.expand(len(each)))
            expected.view(-1, vocab_size)[rows[each], tokens] = -math.inf
    found = next_tokens.best(log_probs, rows, size)
    assert_best(found, expected, vocab_size=vocab_size, size=size)


@pytest.mark.usefixtures("normalizers")
@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_normalizers_of_half_precision_logits_are_exact(shift):
    torch.manual_seed(0)
    logits = (torch.randn(300, 1_024) * 3 + shift).bfloat16()
    found = NextTokens.of(logits.clone(), EXCLUDED)
    expected = logits.double().logsumexp(1, keepdim=True)
    torch.testing.assert_close(found.normalizers.double(), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.usefixtures("normalizers")
@pytest.mark.parametrize("kind", ["plain", "some impossible"])
def test_as_many_half_precision_logits_as_a_large_batch_has_are_normalized_alike(kind):
    torch.manual_seed(0)
    log_probs, rows = -torch.rand(300, 4) * 5, torch.arange(1_200)
    logits = random_logits(len(rows), 1_001, kind=kind, dtype=torch.bfloat16)
    found = NextTokens.of(logits.clone(), EXCLUDED).best(log_probs, rows, 4)
    expected = every_total(logits, log_probs, rows)
    assert_best(found, expected, vocab_size=1_001, size=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_each_hypothesis_is_continued_by_its_best_token_and_given_ones(vocab_size, dtype):
    for seed in range(10):
        logits, log_probs, rows = new_case(seed, vocab_size, dtype=dtype, inactive=True)
        given = torch.randint(vocab_size, (len(rows), 3))
        expected = every_total(logits, log_probs, rows).view(log_probs.numel(), -1)[rows]
        next_tokens = NextTokens.of(logits.clone(), EXCLUDED)
        totals, tokens = next_tokens.best_and_given(log_probs, rows, given)
        assert torch.equal(tokens[:, 1:], given)
        same = {"rtol": 0, "atol": ROUNDING}
        torch.testing.assert_close(totals.double(), expected.gather(1, tokens), **same)
        torch.testing.assert_close(totals[:, 0].double(), expected.amax(dim=1), **same)
