"""Forced decoding, compared with single steps of each sentence."""

import pytest
import torch
from search.workshop import SOURCES, recurrent, transformer
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search.forced import forced_decoding
from tfm.search.hypotheses import length_penalty
from tfm.search.model import Ensemble
from tfm.vocabulary.subword import BOS, EOS

MODELS = {
    "transformer": [transformer(num_decoder_layers=2)],
    "recurrent": [recurrent()],
    "three transformers": [transformer(seed) for seed in range(3)],
    "transformer and recurrent": [transformer(1), recurrent(1)],
}
TARGETS = [[5, 5, 6], [], [4], [4, 6, 4, 4, 4, 5]]


@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
def test_log_probabilities_of_tokens_equal_those_of_single_steps(models):
    ensemble, config = Ensemble(models), SearchConfig(length_penalty=0.7)
    with torch.inference_mode():
        outputs = forced_decoding(models, *batch_of(SOURCES), TARGETS, config)
        for source, target, output in zip(SOURCES, TARGETS, outputs, strict=True):
            state = ensemble.start(*batch_of([source]))
            steps = [
                float(ensemble.step(torch.tensor([[previous]]), state)[0, 0, token])
                for previous, token in zip([BOS, *target], [*target, EOS], strict=True)
            ]
            assert output.tokens == tuple(target)
            assert output.token_log_probs == pytest.approx(steps, abs=1e-5)
            assert output.log_prob == pytest.approx(sum(steps), abs=1e-5)
            penalty = length_penalty(len(target) + 1, config)
            assert output.score == pytest.approx(sum(steps) / penalty, abs=1e-5)
