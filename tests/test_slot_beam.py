"""Beam search in slots: recorded steps, and the results of beam search."""

import pytest
import torch
from replays import record
from small_models import batch_of

from tfm.config import SearchConfig, TransformerConfig
from tfm.data.subword import EOS
from tfm.model.slots import SlotShape
from tfm.model.transformer import Transformer
from tfm.search.beam import beam_search
from tfm.search.constraints import Constraints
from tfm.search.slot_beam import SlotBeams, hypotheses

V = 9
CPU = torch.device("cpu")
SOURCES = [[4, 5, 8, EOS], [6, EOS], [EOS], [5, 5, 6, 7, 4, EOS]]
SHAPE = {"num_slots": 4, "source_capacity": 6, "capacity": 16}


def new_transformer(seed=0, *, vocab_size=V, **settings):
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=2, d_model=8, d_ff=16, num_heads=2, **settings
    )
    model = Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    with torch.no_grad():
        model.output_weight.mul_(4)  # makes its probabilities less uniform
    return model.double().eval()


def prefill(beams, slots, sources, config, *, prefixes=None, max_positions=None):
    source, lengths = batch_of(sources)
    constraints = Constraints.of(lengths, config, max_positions=max_positions, prefixes=prefixes)
    beams.prefill(slots, source, lengths, constraints)


def new_beams(model, config):
    shape = SlotShape(num_hypotheses=config.beam_size, **SHAPE)
    return SlotBeams(model, config, shape, CPU)


def run(beams, step, slots):
    for _ in range(100):
        if not beams.is_open[slots].any():
            return hypotheses(beams.outputs(slots))
        step()
    raise AssertionError("the search does not end")


def assert_same(found, expected):
    for best, expected_best in zip(found, expected, strict=True):
        assert [h.tokens for h in best] == [h.tokens for h in expected_best]
        for name in ("log_prob", "score"):
            assert [getattr(h, name) for h in best] == pytest.approx(
                [getattr(h, name) for h in expected_best], rel=1e-5
            )


@pytest.mark.parametrize("vocab_size", [V, 70_001])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_replaying_a_recorded_step_finds_the_results_of_beam_search(beam_size, vocab_size):
    model = new_transformer(vocab_size=vocab_size)
    config = SearchConfig(beam_size=beam_size, n_best=beam_size, max_extra_length=5)
    with torch.inference_mode():
        beams = new_beams(model, config)
        step = record(beams.step).replay  # with empty slots
        for sources, prefixes, slots in [
            (SOURCES, [[], [4, 5], [7], []], [2, 0, 3, 1]),
            (SOURCES[:2], None, [1, 3]),
        ]:
            prefill(beams, slots, sources, config, prefixes=prefixes)
            expected = beam_search(model, *batch_of(sources), config, prefixes=prefixes)
            assert_same(run(beams, step, slots), expected)


def test_a_step_that_reads_values_cannot_be_recorded():
    x = torch.ones(2)
    with pytest.raises(AssertionError, match="waits for the device"):
        record(lambda: x[x > 0])
    with pytest.raises(AssertionError, match="waits for the device"):
        record(lambda: x.sum().item())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(3))
def test_slots_at_different_positions_are_independent(seed, alpha):
    model = new_transformer(seed, norm="pre")
    config = SearchConfig(beam_size=4, n_best=2, length_penalty=alpha, max_extra_length=4)
    with torch.inference_mode():
        expected = beam_search(model, *batch_of(SOURCES), config)
        beams = new_beams(model, config)
        # Add sentences one after another, while the earlier ones are active.
        for slot, source in enumerate(SOURCES):
            prefill(beams, [slot], [source], config)
            beams.step()
        assert_same(run(beams, beams.step, list(range(len(SOURCES)))), expected)


def test_outputs_are_not_longer_than_the_learned_positions():
    model = new_transformer(learned_positions=6)
    config = SearchConfig(beam_size=2, max_extra_length=10, length_penalty=3.0)
    with torch.inference_mode():
        expected = beam_search(model, *batch_of(SOURCES), config)
        beams = new_beams(model, config)
        prefill(beams, [0, 1, 2, 3], SOURCES, config, max_positions=model.max_positions)
        assert_same(run(beams, beams.step, [0, 1, 2, 3]), expected)
    assert max(len(best[0].tokens) for best in expected) == 5


def test_finished_outputs_are_kept_until_they_are_replaced():
    model = new_transformer()
    config = SearchConfig(beam_size=3, max_extra_length=2)
    with torch.inference_mode():
        beams = new_beams(model, config)
        prefill(beams, [1], SOURCES[:1], config)
        [found] = run(beams, beams.step, [1])
        for _ in range(20):
            beams.step()
        assert hypotheses(beams.outputs([1])) == [found]
