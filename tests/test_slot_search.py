"""Search in slots: the outputs of beam search, in order, whatever is in the slots together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.config import SearchConfig, TransformerConfig
from tfm.data.subword import EOS, PAD
from tfm.model.transformer import Transformer
from tfm.search.beam import beam_search
from tfm.search.slot_beams import SlotSentences
from tfm.search.slot_search import SlotSearch

V = 9


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = TransformerConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2
    )
    model = Transformer(config, source_vocab_size=V, target_vocab_size=V).double().eval()
    with torch.no_grad():
        model.output_weight.mul_(4)  # makes it decided
    return model


class Batches:
    """Batches to be taken, of which some would have to be waited for."""

    def __init__(self, batches, config, *, absent=()):
        self.batches = [
            SlotSentences.of(*padded(batch), config, max_positions=None) for batch in batches
        ]
        self.absent = set(absent)
        self.num_taken = 0

    def take(self, wait):
        if self.num_taken == len(self.batches):
            return None
        if self.num_taken in self.absent and not wait:
            return None
        self.num_taken += 1
        return self.batches[self.num_taken - 1]


def padded(sources):
    rows = [torch.tensor(source) for source in sources]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return batch, torch.tensor([len(row) for row in rows])


def slots_of(model, **options):
    return SlotSearch(model, torch.device("cpu"), **options)


def found_in(search, batches, config, **options):
    with torch.inference_mode():
        return list(search.found(Batches(batches, config, **options).take, config))


def found_by_beam_search(model, batches, config):
    with torch.inference_mode():
        return [beam_search(model, *padded(batch), config) for batch in batches]


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for our_best, their_best in zip(ours, theirs, strict=True):
            assert [each.tokens for each in our_best] == [each.tokens for each in their_best]
            assert [each.score for each in our_best] == pytest.approx(
                [each.score for each in their_best], abs=1e-5
            )


def new_batch(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(4, V, (length,), generator=generator).tolist(), EOS] for length in lengths
    ]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), max_size=6),
    beam_size=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, -0.5]),
    extra=st.sampled_from([1, 6]),
    max_tokens=st.sampled_from([1, 16, 40, 4096]),
    absent=st.sets(st.integers(0, 5)),
)
def test_batches_of_any_size_in_any_number_of_slots_give_the_outputs_of_beam_search(
    model, lengths, beam_size, alpha, extra, max_tokens, absent
):
    config = SearchConfig(
        beam_size=beam_size,
        n_best=beam_size,
        length_penalty=alpha,
        max_extra_length=extra,
        max_tokens=max_tokens,
    )
    batches = [new_batch(each, seed) for seed, each in enumerate(lengths)]
    found = found_in(slots_of(model), batches, config, absent=absent)
    assert_same(found, found_by_beam_search(model, batches, config))


def test_sentences_of_other_lengths_get_other_rooms(model):
    config = SearchConfig(beam_size=2, max_extra_length=3)
    batches = [new_batch([130, 100]), new_batch([70, 66]), new_batch([3, 2, 60]), new_batch([140])]
    search = slots_of(model)
    assert_same(found_in(search, batches, config), found_by_beam_search(model, batches, config))
    rooms = [shape for _, shape in search._rooms]
    assert sorted({shape.source_capacity for shape in rooms}) == [64, 128, 256]
    assert all(shape.capacity >= shape.source_capacity + 3 for shape in rooms)


def test_a_prefix_may_be_longer_than_any_output_would_be(model):
    config = SearchConfig(beam_size=2, max_extra_length=1)
    sources, prefixes = new_batch([2, 3]), [[5] * 90, [4]]
    sentences = SlotSentences.of(*padded(sources), config, max_positions=None, prefixes=prefixes)
    waiting = [sentences]
    with torch.inference_mode():
        search = slots_of(model).found(lambda wait: waiting.pop() if waiting else None, config)
        expected = beam_search(model, *padded(sources), config, prefixes=prefixes)
        assert_same(list(search), [expected])
    assert expected[0][0].tokens[:90] == (5,) * 90


def count_steps(model):
    """A search, and the steps that it has taken."""
    steps = []

    def counted(step):
        def take_step():
            steps.append(1)
            step()

        return take_step

    return slots_of(model, record=counted), steps


def test_the_next_sentences_come_in_while_others_go_on(model):
    # So few tokens at a time that there are eight slots.
    config = SearchConfig(beam_size=1, max_extra_length=60, max_tokens=32)
    batches = [new_batch([9, 3], seed) for seed in range(16)]
    together, steps = count_steps(model)
    found_in(together, batches, config)
    one_by_one, more_steps = count_steps(model)
    for batch in batches:
        found_in(one_by_one, [batch], config)
    assert len(steps) < len(more_steps) / 2


def test_a_room_serves_again_and_is_given_up_when_someone_breaks_off(model):
    config = SearchConfig(beam_size=2, max_extra_length=5, max_tokens=32)
    batches = [new_batch([4, 5]), new_batch([2, 7])]
    rooms = []
    search = slots_of(model, record=lambda step: rooms.append(step) or step)
    expected = found_by_beam_search(model, batches, config)
    for _ in range(2):
        assert_same(found_in(search, batches, config), expected)
    assert len(rooms) == 1
    with torch.inference_mode():
        broken_off = search.found(Batches(batches * 9, config).take, config)
        next(broken_off)
        broken_off.close()
    assert_same(found_in(search, batches, config), expected)
    assert len(rooms) == 2


def test_it_waits_for_a_batch_only_if_nothing_else_is_to_be_done(model):
    config = SearchConfig(beam_size=2, max_extra_length=5)
    batches = Batches([new_batch([4, 5]), new_batch([2, 7])], config)
    waits = []

    def take(wait):
        waits.append(wait)
        # Those that are not there yet come as soon as they are waited for.
        return batches.take(wait) if wait else None

    with torch.inference_mode():
        for number, _ in enumerate(slots_of(model).found(take, config), start=1):
            assert batches.num_taken == number  # each was yielded before the next was waited for
    assert waits.count(True) == 3
