"""Active hypotheses, which all searches share: their continuations, and waiting for a GPU."""

from collections import Counter

import numpy as np
import pytest
import small_models
import torch
from search.workshop import SOURCES, V, transformer
from small_models import batch_of
from torch.overrides import TorchFunctionMode

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.products_cpu import prepack_fp32
from tfm.config import SearchConfig
from tfm.model import cache
from tfm.search import active
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import finish, num_candidates
from tfm.search.constraints import Constraints
from tfm.vocabulary.subword import EOS

PREFIXES = [[6], [], [5, 4, 4], [4, 6]]


def advance(hypotheses, found):
    """Continue all hypotheses that do not end."""
    hypotheses.advance(found, (found.tokens != EOS) & np.isfinite(found.totals))


@pytest.mark.parametrize("part_rows", [256, 1, 5])
@pytest.mark.parametrize("prefixes", [None, PREFIXES])
@pytest.mark.parametrize("constraints", [None, Constraints(1, None)])
def test_the_best_continuations_are_the_best_of_all_log_probabilities(
    constraints, prefixes, part_rows, monkeypatch
):
    """At every step, whether a prefix, the maximum length or a constraint restricts tokens or not.

    Hypotheses are projected to logits all at once, or a few at a time.
    """
    config = SearchConfig(max_extra_length=3)
    model = transformer()
    monkeypatch.setattr(active, "_PART_ROWS", part_rows)
    with torch.inference_mode():
        hypotheses = ActiveHypotheses(model, *batch_of(SOURCES), config, prefixes, constraints)
        while hypotheses.num_open:
            size = int(torch.randint(1, 9, ()))
            log_probs = hypotheses.copy().next_log_probs()
            past = torch.from_numpy(hypotheses.log_probs)[:, :, None]
            totals = (past + log_probs).flatten(1)
            found = hypotheses.best_continuations(size)
            best = totals.topk(min(size, totals.size(1))).values
            found_totals, parents, tokens = map(torch.from_numpy, found)
            torch.testing.assert_close(found_totals, best)
            chosen_totals = totals.gather(1, parents * V + tokens)
            is_possible = best.isfinite()  # other entries may be any continuation
            torch.testing.assert_close(chosen_totals[is_possible], best[is_possible])
            advance(hypotheses, found)
        if constraints is None:
            assert hypotheses.tokens.shape[2] >= max(map(len, SOURCES)) + 3


@pytest.mark.parametrize("prepacked", [False, True], ids=["plain", "prepacked"])
@pytest.mark.parametrize("vocab_size", [V, 65, 130])
def test_impossible_continuations_beside_a_prefix_have_tokens_in_the_vocabulary(
    vocab_size, prepacked
):
    """A forced sentence has fewer continuations than its beam; the model embeds the others too.

    A CPU's inference backend pads the vocabulary.
    """
    model = small_models.transformer(vocab_size)
    if prepacked:
        model = CpuInference(prepack_fp32, torch.float32).optimized(model)
    sources, beam = SOURCES * 5, SearchConfig(beam_size=6, n_best=2, max_extra_length=4)
    with torch.inference_mode():
        hypotheses = ActiveHypotheses(model, *batch_of(sources), beam, [[5, 4, 6], *[[]] * 19])
        for _ in range(3):
            advance(hypotheses, hypotheses.best_continuations(200))
            assert (hypotheses.tokens < vocab_size).all()


class Waits(TorchFunctionMode):
    """Counts the calls that wait for a GPU, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.counts[getattr(function, "__name__", "")] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("prefixes", [None, PREFIXES])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_step_of_beam_search_waits_for_the_device_only_for_its_choice(
    monkeypatch, beam_size, prefixes
):
    """Dropping columns of the cache waits, too, but only every few steps."""
    monkeypatch.setattr(cache, "_DROP_INTERVAL", 1_000)
    config = SearchConfig(beam_size=beam_size, max_extra_length=3)
    finished = [[] for _ in SOURCES]
    with torch.inference_mode():
        hypotheses = ActiveHypotheses(transformer(), *batch_of(SOURCES), config, prefixes)
        while hypotheses.num_open:
            with Waits() as waits:
                candidates = hypotheses.best_continuations(num_candidates(beam_size))
                continued = finish(hypotheses, candidates, finished, beam_size, n_best=1)
                hypotheses.advance(*continued)
            assert waits.counts["numpy"] == 3  # the three arrays of continuations, at once
            for name in ("nonzero", "item", "tolist", "cpu", "__bool__", "__int__", "__float__"):
                assert waits.counts[name] == 0, name
