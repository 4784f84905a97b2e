"""Embeddings and positional encoding, computed by hand (§3.4, §3.5)."""

import math

import pytest
import torch
from torch import nn

from tfm.config import TransformerConfig
from tfm.model.attention import sinusoidal_encoding
from tfm.model.layers import Embedding, new_embedding_weight
from tfm.model.packing import Padded


def test_sinusoids_are_those_of_the_paper():
    found = sinusoidal_encoding(torch.tensor([0, 1]), 4)
    expected = [[0, 1, 0, 1], [0.84147, 0.54030, 0.0099998, 0.99995]]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)


def test_sinusoids_are_accurate_at_late_positions():
    d_model = 6
    positions = [0, 7, 255, 100_000]
    expected = [
        [
            (math.sin if column % 2 == 0 else math.cos)(
                position / 10_000 ** ((column - column % 2) / d_model)
            )
            for column in range(d_model)
        ]
        for position in positions
    ]
    found = sinusoidal_encoding(torch.tensor(positions), d_model)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


def new_embedding(weight, *, dropout):
    return Embedding(weight, TransformerConfig(embedding_dropout=dropout))


def embed(embedding, tokens, *, first_position=0):
    return embedding(tokens, Padded(tokens.size(1), first_position=first_position))


def test_embeddings_are_scaled_and_positions_added():
    weight = nn.Parameter(torch.randn(5, 4))
    embedding = new_embedding(weight, dropout=0.0)
    found = embed(embedding, torch.tensor([[3, 1]]))
    expected = weight[[3, 1]] * 2 + sinusoidal_encoding(torch.arange(2), 4)
    torch.testing.assert_close(found, expected[None])


def test_scaled_embeddings_have_unit_variance():
    torch.manual_seed(0)
    assert float(new_embedding_weight(4000, 64).detach().var()) * 64 == pytest.approx(1, rel=0.02)


def test_sentences_may_be_longer_than_the_table_of_positions():
    embedding = new_embedding(nn.Parameter(torch.zeros(3, 4)), dropout=0.0)
    found = embed(embedding, torch.zeros(1, 1000, dtype=torch.long))
    torch.testing.assert_close(found[0], sinusoidal_encoding(torch.arange(1000), 4))


def test_a_table_that_grew_in_inference_mode_can_be_used_in_training():
    embedding = new_embedding(nn.Parameter(torch.randn(3, 4)), dropout=0.1)
    tokens = torch.zeros(1, 600, dtype=torch.long)
    with torch.inference_mode():
        embed(embedding, tokens)
    embed(embedding, tokens).sum().backward()
    assert embedding.weight.grad is not None


def test_dropout_acts_on_the_sum_of_embedding_and_position():
    embedding = new_embedding(nn.Parameter(torch.ones(3, 64)), dropout=0.5)
    tokens = torch.zeros(1, 200, dtype=torch.long)
    torch.manual_seed(0)
    dropped = embed(embedding, tokens)
    zeros = dropped == 0
    assert float(zeros.float().mean()) == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(dropped[~zeros], 2 * embed(embedding.eval(), tokens)[~zeros])
