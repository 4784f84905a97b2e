"""How good a model is on the validation split, while it is being trained."""

import math

import pytest
import torch

from tfm import stages
from tfm.config import SearchConfig
from tfm.device.compute import Compute
from tfm.inference.translator import Translator
from tfm.metrics.scores import corpus_scores
from tfm.model.build import new_model
from tfm.stages.training_data import open_data
from tfm.stages.validation import Validator


@pytest.fixture
def validate(data_dir, tiny_run):
    """Validate an untrained model with a beam."""

    def call(beam, check=lambda model, data: None):
        metric = "score" if beam else "loss"
        run = tiny_run(training={"validation_beam": beam, "best_metric": metric})
        data = open_data(data_dir, run)
        source_size, target_size = data.info.vocab_sizes
        torch.manual_seed(0)
        model = new_model(run.model, source_vocab_size=source_size, target_vocab_size=target_size)
        validator = Validator(
            split=data.valid,
            vocabulary=data.vocabulary,
            info=data.info,
            compute=Compute(torch.device("cpu"), torch.float32),
        )
        validation = validator.validate(model)
        check(model, data)
        return validation

    return call


def test_without_a_beam_there_is_the_loss_alone(validate):
    validation = validate(0)
    assert validation.metrics.keys() == {"loss", "perplexity"}
    assert validation.metrics["perplexity"] == pytest.approx(math.exp(validation.metrics["loss"]))
    assert "BLEU" not in str(validation)


def test_with_a_beam_bleu_comes_with_its_signature(validate):
    validation = validate(1)
    assert 0 <= validation.metrics["bleu"] <= 100
    assert "tok:13a" in str(validation)
    assert validation.metrics["loss"] == validate(0).metrics["loss"]


def test_outputs_are_scored_in_the_order_of_their_sources(validate, monkeypatch):
    scored = []

    def score(outputs, *others):
        scored.append(outputs)
        return corpus_scores(outputs, *others)

    def check(model, data):
        lengths = [len(source) for source in data.valid.sources]
        assert lengths != sorted(lengths, reverse=True)
        translator = Translator(
            [model], data.vocabulary, Compute(torch.device("cpu"), torch.float32)
        )
        assert scored == [translator.translate(data.valid.sources, SearchConfig(beam_size=1))]
        assert len(set(scored[0])) > 1

    monkeypatch.setattr(stages.validation, "corpus_scores", score)
    monkeypatch.setattr(stages.validation, "_CHUNK", 3)
    validate(1, check)
