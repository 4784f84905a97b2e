"""Recorded attention weights, and the unchanged model."""

import pytest
import torch
from torch import nn

from tfm.config import RecurrentConfig, TransformerConfig
from tfm.model.heads import Heads
from tfm.model.recurrent import Recurrent
from tfm.model.transformer import Transformer
from tfm.model.weights import record_attention

V, H, LAYERS_ENCODER, LAYERS_DECODER = 13, 2, 2, 3
EVERY_ATTENTION = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"attention": "additive"},
        {"attention_window": 2},
        {"attention_window": 3, "attention": "additive"},
        {"d_k": 3, "d_v": 7},
    ],
    ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items()) or "plain",
)


def new_model(**changes):
    """Return a Transformer with a dropout of one half and biases that are not zero."""
    torch.manual_seed(0)
    config = TransformerConfig(
        **{
            "num_encoder_layers": LAYERS_ENCODER,
            "num_decoder_layers": LAYERS_DECODER,
            "d_model": 8,
            "d_ff": 20,
            "num_heads": H,
            "dropout": 0.5,
            "attention_dropout": 0.5,
            **changes,
        }
    )
    model = Transformer(config, source_vocab_size=V, target_vocab_size=V)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def new_batch():
    torch.manual_seed(0)
    lengths = torch.tensor([4, 9, 1])
    return torch.randint(4, V, (3, 9)), lengths, torch.randint(4, V, (3, 7))


def valid_rows(lengths, size):
    """Return [B, size], True where a source position is no padding."""
    return torch.arange(size) < lengths[:, None]


@EVERY_ATTENTION
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
    torch.manual_seed(0)
    config = RecurrentConfig(
        num_encoder_layers=1, num_decoder_layers=2, d_model=8, attention=attention
    )
    model = Recurrent(config, source_vocab_size=V, target_vocab_size=V).train()
    source, lengths, target = new_batch()
    weights = record_attention(model, source, lengths, target)
    assert (weights.encoder, weights.decoder) == (None, None)
    assert weights.cross.shape == (1, 3, 1, 7, 9)
    torch.testing.assert_close(weights.cross.sum(-1), torch.ones(1, 3, 1, 7))
    assert not weights.cross[0, :, 0].transpose(1, 2)[~valid_rows(lengths, 9)].any()
    again = record_attention(model, source, lengths, target)
    torch.testing.assert_close(again.cross, weights.cross, rtol=0, atol=0)
    assert model.training
