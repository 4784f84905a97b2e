"""Building models from configurations."""

import pytest

from tfm.config import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.model.build import evaluation_copy, new_model

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8}


def test_a_configuration_without_a_model_is_an_error():
    with pytest.raises(TypeError, match="ModelConfig describes no model"):
        new_model(ModelConfig(), (9, 9))


@pytest.mark.parametrize(
    "config", [TransformerConfig(**SMALL, num_heads=2), RecurrentConfig(**SMALL)]
)
def test_an_evaluation_copy_shares_the_weights_and_leaves_the_model_in_training(config):
    model = new_model(config, (9, 9)).train()
    copy = evaluation_copy(model)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in copy.modules())
    assert set(model.modules()).isdisjoint(copy.modules())
    ours, theirs = dict(model.named_parameters()), dict(copy.named_parameters())
    assert list(ours) == list(theirs)
    assert all(theirs[name] is parameter for name, parameter in ours.items())
