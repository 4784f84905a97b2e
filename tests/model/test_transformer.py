"""The Transformer: compared with torch.nn.Transformer, and properties for any weights."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from model_properties import (
    assert_each_parameter_learns,
    assert_only_training_drops,
    assert_padding_changes_nothing,
    assert_the_future_is_hidden,
    assert_ties,
    logits_of,
)
from small_models import EVERY_TRANSFORMER, NO_DROPOUT, moved, random_batch, transformer
from torch import nn

from tfm.config import TransformerConfig
from tfm.errors import UsageError
from tfm.model.attention import FeedForward, sinusoidal_encoding

V = 13
LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 3}
SHAPE = {**LAYERS, "d_model": 8, "d_ff": 20, "num_heads": 2, **NO_DROPOUT}


new_batch = partial(random_batch, V, [4, 6, 1], 5)


def new_model(seed=0, **changes):
    return moved(transformer(V, seed, **{**SHAPE, **changes}).double())


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x: max(0.0, x)),
        ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
        ("silu", lambda x: x / (1 + math.exp(-x))),
    ],
)
def test_the_feed_forward_network_follows_the_formula_of_its_activation(activation, formula):
    layer = FeedForward(TransformerConfig(d_model=2, num_heads=1, d_ff=3, activation=activation))
    layer = layer.double()
    nn.init.uniform_(layer.inner.bias, -1, 1)
    x = torch.tensor([0.7, -1.3]).double()
    hidden = torch.tensor(
        [formula(value) for value in layer.inner(x).tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(layer(x), layer.outer(hidden))


class Reference(nn.Module):
    """torch.nn.Transformer with the weights of a model."""

    def __init__(self, model, norm):
        super().__init__()
        self.stack = nn.Transformer(
            d_model=SHAPE["d_model"],
            nhead=SHAPE["num_heads"],
            num_encoder_layers=SHAPE["num_encoder_layers"],
            num_decoder_layers=SHAPE["num_decoder_layers"],
            dim_feedforward=SHAPE["d_ff"],
            dropout=0.0,
            batch_first=True,
            norm_first=norm == "pre",
            dtype=torch.float64,
        )
        if norm == "post":
            self.stack.encoder.norm = self.stack.decoder.norm = None
        self.source_weight = nn.Parameter(torch.empty(V, SHAPE["d_model"]).double())
        self.target_weight = nn.Parameter(torch.empty(V, SHAPE["d_model"]).double())
        self.output_weight = nn.Parameter(torch.empty(V, SHAPE["d_model"]).double())
        self.pairs = list(self._pairs(model))
        with torch.no_grad():
            for theirs, ours in self.pairs:
                theirs.copy_(ours)

    def _pairs(self, model):
        yield self.source_weight, model.source_embedding.weight
        yield self.target_weight, model.target_embedding.weight
        yield self.output_weight, model.output_weight
        for theirs, ours in zip(self.stack.encoder.layers, model.encoder, strict=True):
            yield from self._layer_pairs(theirs, ours)
            yield from self._same_names(theirs.norm2, ours.feed_forward_residual.norm)
        for theirs, ours in zip(self.stack.decoder.layers, model.decoder, strict=True):
            yield from self._layer_pairs(theirs, ours)
            yield from self._attention_pairs(theirs.multihead_attn, ours.cross_attention)
            yield from self._same_names(theirs.norm2, ours.cross_attention_residual.norm)
            yield from self._same_names(theirs.norm3, ours.feed_forward_residual.norm)
        if self.stack.encoder.norm is not None:
            yield from self._same_names(self.stack.encoder.norm, model.encoder_norm)
            yield from self._same_names(self.stack.decoder.norm, model.decoder_norm)

    def _layer_pairs(self, theirs, ours):
        yield from self._attention_pairs(theirs.self_attn, ours.self_attention)
        yield from self._same_names(theirs.norm1, ours.self_attention_residual.norm)
        yield from self._same_names(theirs.linear1, ours.feed_forward.inner)
        yield from self._same_names(theirs.linear2, ours.feed_forward.outer)

    def _attention_pairs(self, theirs, ours):
        yield theirs.in_proj_weight, ours.input.weight
        yield theirs.in_proj_bias, ours.input.bias
        yield from self._same_names(theirs.out_proj, ours.output)

    def _same_names(self, theirs, ours):
        yield theirs.weight, ours.weight
        yield theirs.bias, ours.bias

    def forward(self, source, lengths, target_input):
        padding = torch.arange(source.size(1)) >= lengths[:, None]
        num_targets = target_input.size(1)
        hidden_states = self.stack(
            self._embed(source, self.source_weight),
            self._embed(target_input, self.target_weight),
            tgt_mask=torch.ones(num_targets, num_targets, dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return hidden_states @ self.output_weight.T

    def _embed(self, tokens, weight):
        positions = sinusoidal_encoding(torch.arange(tokens.size(1)), SHAPE["d_model"])
        return F.embedding(tokens, weight) * math.sqrt(SHAPE["d_model"]) + positions


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_gradients_equal_those_of_torch(norm):
    model = new_model(norm=norm, tied_embeddings="none")
    reference = Reference(model, norm)
    ours, theirs = logits_of(model, *new_batch()), reference(*new_batch())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)

    for logits in (ours, theirs):
        logits.sin().sum().backward()
    assert len(reference.pairs) == len(list(model.parameters()))
    for expected, parameter in reference.pairs:
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-8, atol=1e-9)


@EVERY_TRANSFORMER
def test_padding_and_the_future_are_hidden_and_each_parameter_learns(changes):
    positions = changes.get("learned_positions") and 9
    model = new_model(**changes | {"learned_positions": positions})
    assert_padding_changes_nothing(model, *new_batch())
    assert_the_future_is_hidden(model, *new_batch())
    model = new_model(**changes | {"learned_positions": positions and 6})
    assert_each_parameter_learns(model, new_batch())


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_sentence_longer_than_the_learned_positions_is_an_error(side):
    model = new_model(learned_positions=5)
    source, lengths, target = new_batch()
    batch = (source, lengths, target) if side == "source" else (source[:, :4], lengths, target)
    if side == "target":
        batch = (source[:, :4], lengths.clamp(max=4), torch.cat([target, target], dim=1))
    with pytest.raises(UsageError, match=r"(6|10) tokens .* 5 positions"):
        model(*batch)


def test_reordering_before_the_first_step_can_drop_sentences():
    model = new_model().eval()
    source, lengths, target = new_batch()
    with torch.no_grad():
        state = model.start(source, lengths)
        state.reorder(torch.tensor([[0], [2]]))
        found = model.step(target[[0, 2], :1], state)
        expected = logits_of(model, source[[0, 2]], lengths[[0, 2]], target[[0, 2], :1])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "name", ["dropout", "embedding_dropout", "attention_dropout", "relu_dropout"]
)
def test_each_dropout_acts_only_in_training(name):
    assert_only_training_drops(new_model(), new_model(**{name: 0.5}), new_batch())


def test_tied_embeddings_are_one_parameter():
    assert_ties(new_model)
