"""What a model costs, against the paper's counts and a real model."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tfm.config import TransformerConfig, run_config
from tfm.model.cost import transformer_cost
from tfm.model.transformer import Transformer

VOCAB_SIZE = 37_000


def cost_of(config, vocab_size=VOCAB_SIZE):
    return transformer_cost(
        config, source_vocab_size=vocab_size, target_vocab_size=vocab_size, max_tokens=1000
    )


def millions(config):
    return cost_of(config).num_parameters / 1e6


def test_base_and_big_have_the_parameters_of_the_paper():
    assert millions(run_config("base").model) == pytest.approx(63.1, abs=0.05)
    assert millions(run_config("big").model) == pytest.approx(214.2, abs=0.05)


@pytest.mark.parametrize(
    ("change", "in_paper"),
    [
        ({"d_k": 16}, 58),
        ({"d_k": 32}, 60),
        ({"num_encoder_layers": 2, "num_decoder_layers": 2}, 36),
        ({"num_encoder_layers": 4, "num_decoder_layers": 4}, 50),
        ({"num_encoder_layers": 8, "num_decoder_layers": 8}, 80),
        ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
        ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
        ({"d_ff": 1024}, 53),
        ({"d_ff": 4096}, 90),
    ],
    ids=str,
)
def test_changes_of_table_3_change_parameters_as_in_the_paper(change, in_paper):
    """Differences from base, which the paper counts as 65 million."""
    base = millions(TransformerConfig())
    assert millions(TransformerConfig(**change)) - base == pytest.approx(in_paper - 65, abs=2.5)


@pytest.mark.parametrize("tied", ["three-way", "two-way", "none"])
def test_parameters_are_counted_as_a_real_model_has_them(tied):
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=2, d_model=8, d_ff=12, num_heads=2,
        norm="pre", tied_embeddings=tied,
    )  # fmt: skip
    model = Transformer(config, source_vocab_size=50, target_vocab_size=50)
    cost = cost_of(config, 50)
    assert cost.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert cost.parameters["embeddings and output"] == {"three-way": 1, "two-way": 2, "none": 3}[
        tied
    ] * (50 * 8)


def test_flops_are_those_of_the_matrix_products_of_a_real_model():
    config = TransformerConfig(
        num_encoder_layers=2, num_decoder_layers=3, d_model=8, d_ff=12, num_heads=2, d_k=3, d_v=5,
    )  # fmt: skip
    model = Transformer(config, source_vocab_size=50, target_vocab_size=50)
    source, target = torch.zeros(4, 6, dtype=torch.long), torch.zeros(4, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(source, torch.full((4,), 6), target)).sum().backward()
    products = {
        str(operation): flops
        for operation, flops in counter.get_flop_counts()["Global"].items()
        if "mm" in str(operation) and "bmm" not in str(operation)
    }
    cost = cost_of(config, 50)
    expected = (
        cost.flops_a_source_token * source.numel() + cost.flops_a_target_token * target.numel()
    )
    assert sum(products.values()) == expected


def test_counting_makes_no_weights():
    config = TransformerConfig(d_model=1 << 16, d_ff=1 << 20)
    assert cost_of(config).num_parameters > 10**12
