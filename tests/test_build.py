"""Building models from configurations."""

import pytest

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.model.build import EvaluationMode, new_model
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (TransformerConfig(**SMALL, num_heads=2), Transformer),
        (RecurrentConfig(**SMALL), Recurrent),
    ],
)
def test_the_configuration_determines_the_kind_of_model(config, kind):
    assert type(new_model(config, source_vocab_size=9, target_vocab_size=9)) is kind


def test_a_configuration_without_a_model_is_an_error():
    with pytest.raises(TypeError, match="ModelConfig describes no model"):
        new_model(ModelConfig(), source_vocab_size=9, target_vocab_size=9)


def test_evaluation_mode_restores_the_mode_even_after_an_error():
    models = [
        new_model(RecurrentConfig(**SMALL), source_vocab_size=9, target_vocab_size=9).train(mode)
        for mode in (True, False)
    ]
    seen = []

    def enter_and_fail():
        with EvaluationMode(models):
            seen.extend(model.training for model in models)
            raise KeyError

    with pytest.raises(KeyError):
        enter_and_fail()
    assert seen == [False, False]
    assert [model.training for model in models] == [True, False]
