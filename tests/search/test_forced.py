"""Forced decoding, compared with search results, single steps and averages by hand."""

from functools import partial

import pytest
import small_models
import torch
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search import search
from tfm.search.forced import forced_decoding
from tfm.search.hypotheses import length_penalty
from tfm.search.model import Ensemble
from tfm.vocabulary.subword import BOS, EOS

V = 12
SOURCES = [[5, 6, 7, EOS], [8, 9, EOS], [EOS], [4, 4, 5, 11, 6, EOS]]
CONFIG = SearchConfig(beam_size=4, n_best=4, max_extra_length=6)


transformer = partial(small_models.transformer, V, num_decoder_layers=2)
recurrent = partial(small_models.recurrent, V, num_decoder_layers=2)
MODELS = {
    "transformer": [transformer(0)],
    "recurrent": [recurrent(0)],
    "three transformers": [transformer(seed) for seed in range(3)],
    "transformer and recurrent": [transformer(1), recurrent(1)],
}
EVERY_MODEL = pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)


def force(models, sources, targets, config=CONFIG):
    with torch.inference_mode():
        return forced_decoding(models, *batch_of(sources), targets, config)


@EVERY_MODEL
def test_log_probabilities_and_scores_equal_those_of_beam_search(models):
    model = models[0] if len(models) == 1 else Ensemble(models)
    with torch.inference_mode():
        found = search(model, *batch_of(SOURCES), CONFIG)
    pairs = [(source, h) for source, best in zip(SOURCES, found, strict=True) for h in best]
    assert len(pairs) == 16
    outputs = force(models, [source for source, _ in pairs], [h.tokens for _, h in pairs])
    for output, (_, hypothesis) in zip(outputs, pairs, strict=True):
        assert output.tokens == hypothesis.tokens
        assert output.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert output.score == pytest.approx(hypothesis.score, abs=1e-4)


@EVERY_MODEL
def test_log_probabilities_of_tokens_equal_those_of_single_steps(models):
    targets = [[5, 5, 6], [], [7], [4, 11, 4, 4, 4, 9]]
    ensemble = Ensemble(models)
    for source, target, output in zip(
        SOURCES, targets, force(models, SOURCES, targets), strict=True
    ):
        with torch.inference_mode():
            state = ensemble.start(*batch_of([source]))
            steps = [
                float(ensemble.step(torch.tensor([[previous]]), state)[0, 0, token])
                for previous, token in zip([BOS, *target], [*target, EOS], strict=True)
            ]
        assert output.token_log_probs == pytest.approx(steps, abs=1e-5)
        assert output.log_prob == pytest.approx(sum(steps), abs=1e-5)
        penalty = length_penalty(len(target) + 1, CONFIG)
        assert output.score == pytest.approx(sum(steps) / penalty, abs=1e-5)


@EVERY_MODEL
def test_results_depend_on_neither_the_order_nor_the_rest_of_the_batch(models):
    targets = [[5, 5, 6], [], [7], [4, 11, 4, 4, 4, 9]]
    together = force(models, SOURCES, targets)
    backwards = force(models, SOURCES[::-1], targets[::-1])[::-1]
    single = [
        force(models, [source], [target])[0]
        for source, target in zip(SOURCES, targets, strict=True)
    ]
    for one, *others in zip(together, backwards, single, strict=True):
        for other in others:
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)
