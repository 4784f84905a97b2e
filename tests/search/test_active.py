"""Active hypotheses, which all searches share: prefixes, limits of length, next tokens."""

import itertools
from collections import Counter
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import small_models
import torch
from small_models import batch_of
from torch.overrides import TorchFunctionMode

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.products_cpu import prepack_fp32
from tfm.config import SearchConfig
from tfm.model import cache
from tfm.search import active, search
from tfm.search.active import ActiveHypotheses
from tfm.search.beam import finish, num_candidates
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble, SearchableModel
from tfm.search.shortlist import ShortlistedModel
from tfm.vocabulary.subword import EOS, UNK

WORDS = (4, 5, 6)
V = 7
SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS]]
PREFIXES = [[6], [], [5, 4, 4], [4, 6]]
SEARCHES = {
    "beam": {"beam_size": 3, "n_best": 3},
    "greedy": {"beam_size": 1},
    "diverse": {"beam_size": 4, "n_best": 4, "num_groups": 2},
    "sample": {"search": "sample", "n_best": 3},
    "exact": {"search": "exact", "beam_size": 2, "n_best": 2},
}
EVERY_SEARCH = pytest.mark.parametrize("kind", SEARCHES)


transformer = partial(small_models.transformer, V, sharpness=3)


def find(kind, model, sources=SOURCES, prefixes=None, lines=None, **config):
    settings = SearchConfig(**{"max_extra_length": 3, "min_length": 0, **SEARCHES[kind], **config})
    assert not list(settings.problems())
    with torch.inference_mode():
        return search(
            model,
            *batch_of(sources),
            settings,
            line_numbers=lines or range(len(sources)),
            prefixes=prefixes,
        )


def force(models, source, outputs, **config):
    with torch.inference_mode():
        return forced_decoding(
            models, *batch_of([source] * len(outputs)), outputs, SearchConfig(**config)
        )


@EVERY_SEARCH
@pytest.mark.parametrize("changes", [{}, {"top_p": 0.8}], ids=str)
def test_results_depend_on_neither_the_order_nor_the_rest_of_the_batch(kind, changes):
    """Samples depend on the number of their line, too."""
    if changes and kind != "sample":
        pytest.skip("a setting of sampling")
    model = transformer()
    together = find(kind, model, **changes)
    for order in [*itertools.permutations(range(4), 2), *([index] for index in range(4))]:
        found = find(kind, model, [SOURCES[i] for i in order], lines=[*order], **changes)
        for best, index in zip(found, order, strict=True):
            assert [h.tokens for h in best] == [h.tokens for h in together[index]]
            scores = [h.score for h in together[index]]
            assert [h.score for h in best] == pytest.approx(scores, abs=1e-5)


# --- minimum length


class Silent(SearchableModel):
    """A model that nearly always ends its output at once."""

    max_positions = None

    def start(self, source, lengths):
        return self

    def step_rows(self, tokens, state, rows):
        logits = torch.zeros(len(rows), V)
        logits[:, EOS] = 9.0
        return logits.__getitem__

    def reorder(self, rows):
        pass


@EVERY_SEARCH
@pytest.mark.parametrize("min_length", [0, 3])
def test_no_output_is_shorter_than_the_minimum_length(kind, min_length):
    for outputs in find(kind, Silent(), min_length=min_length):
        assert min(len(output.tokens) for output in outputs) == min_length


@EVERY_SEARCH
def test_the_maximum_length_limits_the_minimum_length(kind):
    for source, outputs in zip(SOURCES, find(kind, transformer(), min_length=99), strict=True):
        assert {len(output.tokens) for output in outputs} == {len(source) + 2}


# --- prefixes


@EVERY_SEARCH
@pytest.mark.parametrize("size", [1, 2], ids=["model", "ensemble"])
def test_outputs_start_with_their_prefix_and_have_the_log_probability_of_the_whole(kind, size):
    models = [transformer(seed) for seed in range(size)]
    model = models[0] if size == 1 else Ensemble(models)
    found = find(kind, model, prefixes=PREFIXES)
    for source, prefix, best in zip(SOURCES, PREFIXES, found, strict=True):
        assert best
        for hypothesis in best:
            assert list(hypothesis.tokens[: len(prefix)]) == prefix
            [expected] = force(models, source, [hypothesis.tokens])
            assert hypothesis.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-4)


@EVERY_SEARCH
def test_a_prefix_does_not_affect_other_sentences_of_the_batch(kind):
    model = transformer()
    together = find(kind, model, prefixes=PREFIXES)
    free = find(kind, model)[1]
    assert [h.tokens for h in together[1]] == [h.tokens for h in free]


@pytest.mark.parametrize("alpha", [0.6, -0.5])
@pytest.mark.parametrize("kind", ["beam", "exact"])
def test_the_best_outputs_with_a_prefix_are_found(kind, alpha):
    model = transformer(2)
    beam = {"beam": 200, "exact": 2}[kind]
    found = find(kind, model, prefixes=PREFIXES, beam_size=beam, n_best=2, length_penalty=alpha)
    for source, prefix, best in zip(SOURCES, PREFIXES, found, strict=True):
        outputs = [
            [*prefix, *words]
            for length in range(len(source) + 3 - len(prefix))
            for words in itertools.product(WORDS, repeat=length)
        ]
        every = force([model], source, outputs, length_penalty=alpha)
        expected = sorted(every, key=lambda h: -h.score)[:2]
        assert [h.tokens for h in best] == [h.tokens for h in expected]


# Only if more than one of six sentences are finished are they removed.
MANY_SOURCES = [*SOURCES, *SOURCES[:2]]
LONG_PREFIXES = [[4, 6] * 6, [], [6] * 9, [4, 6, 6, 4] * 2, [6] * 12, [4] * 12]
RECURRENT = partial(small_models.recurrent, V, sharpness=3, num_decoder_layers=2)
WITHOUT_FIVE = torch.tensor([[False] * 5 + [True, False]] * 6)
MODELS = {
    "transformer": transformer,
    "window": partial(transformer, attention_window=3),
    "additive": partial(transformer, attention="additive", norm="pre"),
    "gru": partial(RECURRENT, cell="gru"),
    "no input feeding": partial(RECURRENT, input_feeding=False),
    "prepacked": lambda: CpuInference(prepack_fp32, torch.float32).optimized(transformer()),
    "shortlist": lambda: ShortlistedModel(transformer(), torch.arange(V), WITHOUT_FIVE),
    "ensemble": lambda: Ensemble([transformer(), RECURRENT()]),
}


@EVERY_SEARCH
@pytest.mark.parametrize("model", MODELS)
def test_prefixes_that_are_followed_at_once_change_nothing(kind, model, monkeypatch):
    """The sentences of a batch have prefixes of different lengths, or none."""
    changes = {"exact": {}, "diverse": {"max_extra_length": 9, "diversity_strength": 5.0}}
    for size, part_rows in itertools.product([6] if model == "shortlist" else [6, 1], [1024, 6]):
        monkeypatch.setattr(active, "_PREFILL_ROWS", part_rows)
        sources, prefixes = MANY_SOURCES[:size], LONG_PREFIXES[:size]
        settings = changes.get(kind, {"max_extra_length": 9})
        found = find(kind, MODELS[model](), sources, prefixes, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(ActiveHypotheses, "_follow_prefixes", lambda self: None)
            expected = find(kind, MODELS[model](), sources, prefixes, **settings)
        for best, others in zip(found, expected, strict=True):
            assert [each.tokens for each in best] == [each.tokens for each in others]
            assert [each.score for each in best] == pytest.approx(
                [each.score for each in others], abs=1e-4
            )


@EVERY_SEARCH
def test_a_long_prefix_takes_no_more_steps_than_a_short_one(kind):
    counts = []
    for size in (4, 400):
        model = Ensemble([transformer()])
        model.step_rows = Mock(wraps=model.step_rows)
        find(kind, model, SOURCES[:2], [[4] * size, []], min_length=99)
        counts.append(model.step_rows.call_count)
    assert counts[1] <= counts[0] + 2


@EVERY_SEARCH
@pytest.mark.parametrize("length", [6, 20])
def test_an_output_whose_prefix_fills_the_maximum_length_is_its_prefix(kind, length):
    prefix = [4, 6] * 10
    [found] = find(kind, transformer(), [[4, 5, EOS]], [prefix[:length]])
    assert found
    for hypothesis in found:
        # Without a prefix, outputs would have at most five tokens, and EOS.
        assert list(hypothesis.tokens) == prefix[:length]


@EVERY_SEARCH
def test_a_prefix_may_hold_an_unknown_word(kind):
    [found] = find(kind, transformer(), [[4, 5, EOS]], [[UNK, 5]])
    assert found
    for hypothesis in found:
        assert hypothesis.tokens[:2] == (UNK, 5)
        assert UNK not in hypothesis.tokens[2:]


# --- limits


@EVERY_SEARCH
def test_an_ensemble_is_limited_by_the_model_with_the_fewest_positions(kind):
    ensemble = Ensemble(
        [transformer(0), transformer(1, learned_positions=5), transformer(2, learned_positions=7)]
    )
    assert ensemble.max_positions == 5
    found = find(kind, ensemble, max_extra_length=50, length_penalty=3.0)
    assert all(len(h.tokens) + 1 <= 5 for best in found for h in best)


def advance(hypotheses, found):
    """Continue all hypotheses that do not end."""
    hypotheses.advance(found, (found.tokens != EOS) & np.isfinite(found.totals))


@pytest.mark.parametrize("part_rows", [256, 1, 5])
@pytest.mark.parametrize("prefixes", [None, PREFIXES])
def test_the_best_continuations_are_the_best_of_all_log_probabilities(
    prefixes, part_rows, monkeypatch
):
    """At every step, whether a prefix or the maximum length forces tokens or not.

    Hypotheses are projected to logits all at once, or a few at a time.
    """
    config = SearchConfig(max_extra_length=3)
    model = transformer()
    monkeypatch.setattr(active, "_PART_ROWS", part_rows)
    with torch.inference_mode():
        hypotheses = ActiveHypotheses(model, *batch_of(SOURCES), config, prefixes)
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
