"""Ensembles of models."""

import pytest
import torch
from small_models import transformer

from tfm.config import SearchConfig
from tfm.search import search
from tfm.search.model import Ensemble
from tfm.vocabulary.subword import EOS

SOURCE, LENGTHS = torch.tensor([[5, 6, 7, EOS], [8, 9, EOS, 0]]), torch.tensor([4, 3])
CONFIG = SearchConfig(beam_size=3, n_best=3, max_extra_length=8)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_ensemble_of_copies_of_a_model_equals_the_model(size):
    model = transformer(12)
    with torch.inference_mode():
        expected_outputs, outputs = (
            search(each, SOURCE, LENGTHS, CONFIG) for each in (model, Ensemble([model] * size))
        )
    for expected, found in zip(expected_outputs, outputs, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_an_ensemble_averages_probabilities():
    models = [transformer(12, seed) for seed in range(3)]
    ensemble, tokens = Ensemble(models), torch.tensor([[1], [1]])
    with torch.inference_mode():
        found = ensemble.step(tokens, ensemble.start(SOURCE, LENGTHS))
        single = [model.step(tokens, model.start(SOURCE, LENGTHS)) for model in models]
    mean = torch.stack([logits.softmax(dim=-1) for logits in single]).mean(dim=0)
    torch.testing.assert_close(found.exp(), mean)
