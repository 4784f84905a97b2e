"""The cost of a model, compared with the paper's counts and a real model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tfm.config import RecurrentConfig, TransformerConfig
from tfm.model.build import new_model
from tfm.model.cost import gathering_problem, memory_problem, model_cost

VOCAB_SIZE = 37_000


def cost_of(config, vocab_size=VOCAB_SIZE):
    return model_cost(config, (vocab_size, vocab_size))


@pytest.mark.parametrize("tied", ["three-way", "two-way", "none"])
def test_parameter_counts_equal_those_of_a_real_model(tied):
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=2, d_model=8, d_ff=12, num_heads=2,
        norm="pre", tied_embeddings=tied,
    )  # fmt: skip
    model = new_model(config, (50, 50))
    cost = cost_of(config, 50)
    assert cost.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert cost.parameters["embeddings and output"] == {"three-way": 1, "two-way": 2, "none": 3}[
        tied
    ] * (50 * 8)


SMALL = {"num_encoder_layers": 2, "num_decoder_layers": 3, "d_model": 8}


@pytest.mark.parametrize(
    ("attention", "window", "positions"),
    [
        ("dot-product", None, None),
        ("dot-product", 2, 9),
        ("additive", None, 9),
        ("additive", 2, None),
    ],
)
def test_flops_are_those_of_the_matrix_products_of_a_real_transformer(attention, window, positions):
    config = TransformerConfig(
        **SMALL, d_ff=12, num_heads=2, d_k=3, d_v=5, attention=attention,
        attention_window=window, learned_positions=positions,
    )  # fmt: skip
    if window is None:
        # Part of the backward pass of additive scores is no matrix product.
        tolerance = 1e-6 if attention == "dot-product" else 0.05
        assert counted_flops(config) == pytest.approx(expected_flops(config), rel=tolerance)
    else:  # blocks of r queries are given 2r - 1 keys, of which each sees r
        assert expected_flops(config) < counted_flops(config) < 2 * expected_flops(config)


@pytest.mark.parametrize(
    "changes", [{}, {"attention": "additive"}, {"attention": "additive", "encoder_width": 32}]
)
def test_flops_are_those_of_the_matrix_products_of_a_real_recurrent_model(changes):
    # A GRU, because the counter misses some products of torch's LSTM.
    config = RecurrentConfig(**SMALL, cell="gru", **changes)
    bridge = config.encoded_width * 3 * 8
    # The initial states of the encoder and the first fed input are zeros without gradient.
    assert counted_flops(config) == pytest.approx(
        expected_flops(config) + 3 * 2 * BATCH * bridge, rel=0.05
    )


BATCH, S, T = 4, 6, 9


def expected_flops(config):
    return cost_of(config, 50).training_flops(np.full(BATCH, S), np.full(BATCH, T))


def counted_flops(config):
    """Count the operations of a model's forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    model = new_model(config, (50, 50))
    source, target = (
        torch.zeros(BATCH, S, dtype=torch.long),
        torch.zeros(BATCH, T, dtype=torch.long),
    )
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.logits(model(source, torch.full((BATCH,), S), target)).sum().backward()
    return counter.get_total_flops()


def test_a_model_that_no_memory_can_hold_is_a_problem(monkeypatch):
    monkeypatch.setattr("tfm.model.cost.device_memory_bytes", lambda _: 8_000_000_000)
    base, cpu = cost_of(TransformerConfig()), torch.device("cpu")
    assert memory_problem(base, cpu) is None
    assert memory_problem(base, cpu, num_copies=7) is None
    problem = memory_problem(base, cpu, num_copies=8)
    assert problem is not None
    assert "8 copies" in problem
    large = cost_of(TransformerConfig(d_model=8192, d_ff=65_536))
    problem = memory_problem(large, cpu)
    assert problem is not None
    assert f"need {16 * large.num_parameters / 1e9:,.0f} GB, but this machine has 8 GB" in problem
    assert memory_problem(large, cpu, num_copies=1 / 64) is None


def test_a_sharded_model_that_rank_0_cannot_gather_is_a_problem(monkeypatch):
    base, cpu, gpu = cost_of(TransformerConfig()), torch.device("cpu"), torch.device("cuda")
    needed = 12 * base.num_parameters
    monkeypatch.setattr("tfm.model.cost.memory_bytes", lambda: needed)
    assert gathering_problem(base, gpu, num_copies=1 / 2) is None
    problem = gathering_problem(base, cpu, num_copies=1 / 2)  # which has shards, too
    assert problem is not None
    assert f"takes {20 * base.num_parameters / 1e9:,.0f} GB in all" in problem
    monkeypatch.setattr("tfm.model.cost.memory_bytes", lambda: needed - 1)
    assert gathering_problem(base, gpu, num_copies=1 / 2) is not None


def test_a_moving_average_takes_the_memory_of_the_weights(monkeypatch):
    config = TransformerConfig()
    plain, averaged = (
        model_cost(config, (9, 9), averages_weights=averages) for averages in (False, True)
    )
    assert averaged == replace(plain, average_bytes=4 * plain.num_parameters)
    needed = 20 * plain.num_parameters
    monkeypatch.setattr("tfm.model.cost.device_memory_bytes", lambda _: needed)
    assert memory_problem(averaged, torch.device("cpu")) is None
    monkeypatch.setattr("tfm.model.cost.device_memory_bytes", lambda _: needed - 1)
    assert memory_problem(averaged, torch.device("cpu")) is not None
