"""Recorded attention weights, and the unchanged model."""

from functools import partial

import pytest
import torch
from small_models import EVERY_TRANSFORMER, moved, random_batch, recurrent, transformer

from tfm.model.attention import Heads
from tfm.model.attention_weights import record_attention

V = 13
SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 3, "dropout": 0.5, "attention_dropout": 0.5}
new_batch = partial(random_batch, V, [4, 9, 1], 7)


def new_model(**changes):
    return moved(transformer(V, **SHAPE, **changes))


def valid_rows(lengths, size):
    """Return [B, size], True where a source position is no padding."""
    return torch.arange(size) < lengths[:, None]


@EVERY_TRANSFORMER
def test_weights_times_values_equal_the_attention_output(changes, monkeypatch):
    """For each call of each module, including windows in blocks and fused kernels."""
    model = new_model(**changes).eval()
    calls = []
    attend = Heads.attend

    def spy(self, query, key, value, mask, additive_weight):
        output = attend(self, query, key, value, mask, additive_weight)
        calls.append((value, output))
        return output

    source, lengths, target = new_batch()
    monkeypatch.setattr(Heads, "attend", spy)
    weights = record_attention(model, source, lengths, target)
    found = list(weights.encoder)  # in the order of the calls
    for layer in zip(weights.decoder, weights.cross, strict=True):
        found += layer
    valid = valid_rows(lengths, 9)
    for each, (value, output) in zip(found, calls, strict=True):
        expected, output = (x.transpose(1, 2).flatten(2) for x in (each @ value, output))
        if expected.size(1) == 9:  # outputs at padding are ignored
            expected, output = expected[valid], output[valid]
        torch.testing.assert_close(expected, output, rtol=1e-4, atol=1e-5)


def test_weights_of_a_model_in_training_are_without_dropout():
    model = new_model().train()
    first, second = (record_attention(model, *new_batch()) for _ in range(2))
    torch.testing.assert_close(first.cross, second.cross, rtol=0, atol=0)
    model.eval()
    torch.testing.assert_close(record_attention(model, *new_batch()).cross, first.cross)


@pytest.mark.parametrize("training", [True, False])
def test_recording_leaves_the_model_unchanged(training):
    model = new_model().train(training)
    before = [(module, dict(vars(module))) for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    record_attention(model, *new_batch())
    for module, attributes in before:
        assert vars(module) == attributes
    for name, tensor in model.state_dict().items():
        assert tensor.equal(state[name])
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("attention", ["dot-product", "additive"])
def test_the_recurrent_model_has_one_head_of_cross_attention(attention):
    model = recurrent(V, num_decoder_layers=2, attention=attention).train()
    source, lengths, target = new_batch()
    weights = record_attention(model, source, lengths, target)
    assert (weights.encoder, weights.decoder) == (None, None)
    assert weights.cross.shape == (1, 3, 1, 7, 9)
    torch.testing.assert_close(weights.cross.sum(-1), torch.ones(1, 3, 1, 7))
    assert not weights.cross[0, :, 0].transpose(1, 2)[~valid_rows(lengths, 9)].any()
    again = record_attention(model, source, lengths, target)
    torch.testing.assert_close(again.cross, weights.cross, rtol=0, atol=0)
    assert model.training
