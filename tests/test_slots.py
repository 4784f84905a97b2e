"""Decoding in slots, compared with the whole model on each prefix."""

import pytest
import torch

from tfm.backends.plain import Backend
from tfm.config import TransformerConfig
from tfm.model.build import use_backend
from tfm.model.slots import SlotShape
from tfm.model.transformer import Transformer

V = 11
SHAPE = SlotShape(num_slots=5, num_hypotheses=3, source_capacity=6, capacity=9)


def new_model(**settings):
    torch.manual_seed(1)
    shape = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 8, "d_ff": 16}
    config = TransformerConfig(**{**shape, "num_heads": 2, **settings})
    return Transformer(config, source_vocab_size=V, target_vocab_size=V).double().eval()


def new_source(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, V, (length,), generator=generator)


def prefill(model, cache, slots, sources):
    lengths = torch.tensor([len(source) for source in sources])
    padded = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
    model.prefill(cache, torch.tensor(slots), padded, lengths)


class Prefixes:
    """The source and the hypotheses' tokens of each slot in use."""

    def __init__(self, model):
        self.model = model
        self.by_slot = {}

    def logits(self, slot):
        source, hypotheses = self.by_slot[slot]
        memory = source.expand(len(hypotheses), -1)
        lengths = torch.full((len(hypotheses),), len(source))
        hidden_states = self.model(memory, lengths, torch.tensor(hypotheses))
        return self.model.logits(hidden_states)[:, -1]


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm": "pre"}, {"d_k": 3, "d_v": 5}, {"learned_positions": 9}],
)
def test_slots_at_any_position_have_the_logits_of_their_prefixes(settings):
    model = new_model(**settings)
    cache = model.new_slots(SHAPE)
    num_slots, num_hypotheses = SHAPE.num_slots, SHAPE.num_hypotheses
    prefixes = Prefixes(model)
    generator = torch.Generator().manual_seed(2)

    def random(high):
        return torch.randint(high, (num_slots, num_hypotheses), generator=generator)

    with torch.no_grad():
        for number in range(12):
            # New sentences are added while others are active, and replace some of them.
            new = {0: [0, 2, 3], 3: [1], 6: [3, 0]}.get(number, [])
            sources = [new_source(2 + slot, seed=number) for slot in new]
            if new:
                prefill(model, cache, new, sources)
            for slot, source in zip(new, sources, strict=True):
                prefixes.by_slot[slot] = source, [[] for _ in range(num_hypotheses)]
            tokens = random(V)
            is_active = torch.tensor(
                [slot in prefixes.by_slot and number % 4 != slot for slot in range(num_slots)]
            )
            for slot, (_, hypotheses) in prefixes.by_slot.items():
                for ids, token in zip(hypotheses, tokens[slot].tolist(), strict=True):
                    ids.append(token)
            found = model.step_slots(tokens, cache).view(num_slots, num_hypotheses, V)
            for slot in prefixes.by_slot:
                torch.testing.assert_close(found[slot], prefixes.logits(slot))
            parents = random(num_hypotheses)
            cache.reorder(parents, is_active)
            for slot, (source, hypotheses) in list(prefixes.by_slot.items()):
                if is_active[slot]:
                    chosen = [list(hypotheses[parent]) for parent in parents[slot].tolist()]
                    prefixes.by_slot[slot] = source, chosen
                else:
                    del prefixes.by_slot[slot]


def test_only_dot_product_attention_without_a_window_is_decoded_in_slots():
    class InSlots(Backend):
        decodes_in_slots = True

    for settings, expected in [
        ({}, True),
        ({"attention": "additive"}, False),
        ({"attention_window": 3}, False),
    ]:
        model = new_model(**settings)
        assert not model.decodes_in_slots
        use_backend(model, InSlots())
        assert model.decodes_in_slots == expected
