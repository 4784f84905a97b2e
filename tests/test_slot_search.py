"""Search in slots, compared with beam search."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import MemoryCheck

from tfm.config import SearchConfig, TransformerConfig
from tfm.data.subword import EOS, PAD
from tfm.model.transformer import Transformer
from tfm.search import slot_search
from tfm.search.beam import beam_search
from tfm.search.slot_beam import SlotBeams
from tfm.search.slot_search import SlotSearch

V = 9


def new_model():
    torch.manual_seed(3)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2
    )
    model = Transformer(config, source_vocab_size=V, target_vocab_size=V).double().eval()
    with torch.no_grad():
        model.output_weight.mul_(4)  # makes its probabilities less uniform
    return model


@pytest.fixture(scope="module")
def model():
    return new_model()


def padded(sources):
    rows = [torch.tensor(source) for source in sources]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return batch, torch.tensor([len(row) for row in rows])


def new_search(model):
    return SlotSearch(model, torch.device("cpu"))


def find(search, sources, config, *, max_tokens=4096, prefixes=None):
    with torch.inference_mode():
        return search.search(*padded(sources), config, max_tokens=max_tokens, prefixes=prefixes)


def find_by_beam_search(model, sources, config, *, prefixes=None):
    with torch.inference_mode():
        return beam_search(model, *padded(sources), config, prefixes=prefixes)


def assert_same(found, expected):
    for best, expected_best in zip(found, expected, strict=True):
        assert [h.tokens for h in best] == [h.tokens for h in expected_best]
        assert [h.score for h in best] == pytest.approx([h.score for h in expected_best], abs=1e-5)


def new_batch(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(4, V, (length,), generator=generator).tolist(), EOS] for length in lengths
    ]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    beam_size=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, -0.5]),
    extra=st.sampled_from([1, 6]),
    max_tokens=st.sampled_from([1, 16, 40, 4096]),
    min_length=st.integers(0, 4),
    prefix=st.lists(st.integers(4, V - 1), max_size=3),
)
def test_any_number_of_slots_finds_the_outputs_of_beam_search(
    model, lengths, beam_size, alpha, extra, max_tokens, min_length, prefix
):
    config = SearchConfig(
        beam_size=beam_size,
        n_best=beam_size,
        length_penalty=alpha,
        max_extra_length=extra,
        min_length=min_length,
    )
    sources = new_batch(lengths)
    prefixes = [prefix, *[[]] * (len(sources) - 1)]
    found = find(new_search(model), sources, config, max_tokens=max_tokens, prefixes=prefixes)
    assert_same(found, find_by_beam_search(model, sources, config, prefixes=prefixes))


def test_sentences_of_different_lengths_use_slots_of_different_shapes(model):
    config = SearchConfig(beam_size=2, max_extra_length=3)
    sources = new_batch([70, 3, 130, 2, 100, 60, 66, 140])
    search = new_search(model)
    assert_same(find(search, sources, config), find_by_beam_search(model, sources, config))
    shapes = [shape for _, shape in search._pools]
    assert sorted(shape.source_capacity for shape in shapes) == [64, 128, 256]
    assert all(shape.capacity >= shape.source_capacity + 3 for shape in shapes)


def test_a_prefix_may_exceed_the_maximum_length(model):
    config = SearchConfig(beam_size=2, max_extra_length=1)
    sources, prefixes = new_batch([2, 3]), [[5] * 90, [4]]
    expected = find_by_beam_search(model, sources, config, prefixes=prefixes)
    assert_same(find(new_search(model), sources, config, prefixes=prefixes), expected)
    assert expected[0][0].tokens[:90] == (5,) * 90


def count_steps(model, monkeypatch):
    """Return a search, and a list that grows by one entry with each step."""
    steps = []

    def counted(step, _device):
        def take_step():
            steps.append(1)
            step()

        return take_step

    monkeypatch.setattr(slot_search, "recorded", counted)
    return new_search(model), steps


def test_new_sentences_are_added_while_others_are_active(model, monkeypatch):
    # With this max_tokens there are eight slots.
    config = SearchConfig(beam_size=1, max_extra_length=60)
    sources = new_batch([9, 3] * 16)
    together, steps = count_steps(model, monkeypatch)
    find(together, sources, config, max_tokens=32)
    in_pairs, more_steps = count_steps(model, monkeypatch)
    for start in range(0, len(sources), 2):
        find(in_pairs, sources[start : start + 2], config, max_tokens=32)
    assert len(steps) < len(more_steps) / 2


def test_slots_are_reused_unless_a_search_was_interrupted(model, monkeypatch):
    config = SearchConfig(beam_size=2, max_extra_length=5)
    sources = new_batch([4, 5, 2, 7])
    recorded = []
    monkeypatch.setattr(
        slot_search, "recorded", lambda step, _device: recorded.append(step) or step
    )
    search = new_search(model)
    expected = find_by_beam_search(model, sources, config)
    for _ in range(2):
        assert_same(find(search, sources, config, max_tokens=32), expected)
    assert len(recorded) == 1
    with monkeypatch.context() as patched:
        patched.setattr(SlotBeams, "outputs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            find(search, sources, config, max_tokens=32)
    assert_same(find(search, sources, config, max_tokens=32), expected)
    assert len(recorded) == 2


def interrupted(*_):
    raise KeyboardInterrupt


def recorded_on_a_cpu(step, _device):
    return MemoryCheck(step).replay


def test_steps_recorded_before_a_long_source_read_no_freed_memory_after_it(monkeypatch):
    monkeypatch.setattr(slot_search, "recorded", recorded_on_a_cpu)
    model = new_model()  # without positions for a long source
    config = SearchConfig(beam_size=2, max_extra_length=3)
    search, short = new_search(model), new_batch([4, 2])
    expected = find_by_beam_search(model, short, config)
    for sources in (short, new_batch([260]), short):
        found = find(search, sources, config)
    assert_same(found, expected)


def test_a_replay_that_would_read_freed_memory_is_noticed():
    tensors = [torch.zeros(3)]
    replay = MemoryCheck(lambda: tensors[0] + 1).replay
    replay()
    tensors[0] = torch.ones(3)
    with pytest.raises(AssertionError, match="the memory was freed"):
        replay()
