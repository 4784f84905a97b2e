"""All searches: a model whose probabilities are not finite is an error, not an output."""

import math

import pytest
import torch
from small_models import batch_of, transformer

from tfm.config import SearchConfig
from tfm.errors import CheckpointError
from tfm.search import search
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble

V = 90
BATCH = batch_of([[5, 6, 7, 2], [8, 2], [2]])
MESSAGE = "the model gives no finite probabilities: its weights are damaged, or its training div"
SEARCHES = [
    {"beam_size": 1},
    {"beam_size": 4, "n_best": 3},
    {"beam_size": 4, "num_groups": 2},
    {"search": "sample", "n_best": 2},
    {"search": "sample", "top_k": 5},
    {"search": "sample", "top_p": 0.5},
    {"search": "exact", "node_limit": 100},
    {"min_length": 2},
    {"length_penalty": -1.0},
]


def nan(weight):
    return weight.fill_(math.nan)


def huge(weight):
    return weight.mul_(1e30)


def broken(change):
    """Return a model with the weights of a training that diverged."""
    model = transformer(V)
    with torch.no_grad():
        for weight in model.parameters():
            change(weight)
    return model


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
@pytest.mark.parametrize("prefixes", [None, [[9], [], [9, 10]]])
def test_a_search_with_a_model_that_diverged_fails_clearly(settings, prefixes):
    model, config = broken(nan), SearchConfig(max_extra_length=5, **settings)
    with torch.inference_mode(), pytest.raises(CheckpointError, match=MESSAGE):
        search(model, *BATCH, config, line_numbers=[1, 2, 3], prefixes=prefixes)


@pytest.mark.parametrize("change", [nan, huge])
def test_one_model_that_diverged_breaks_an_ensemble(change):
    ensemble = Ensemble([transformer(V), broken(change)])
    with torch.inference_mode(), pytest.raises(CheckpointError, match=MESSAGE):
        search(ensemble, *BATCH, SearchConfig(), line_numbers=[1, 2, 3])


@pytest.mark.parametrize("change", [nan, huge])
def test_forced_decoding_fails_clearly(change):
    with torch.inference_mode(), pytest.raises(CheckpointError, match=MESSAGE):
        forced_decoding([broken(change)], *BATCH, [[5], [], [6, 7]], SearchConfig())
