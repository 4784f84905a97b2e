"""Decoding in slots: what a step gives is what the whole model gives for each prefix."""

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


def prefill(model, slots, places, sources):
    lengths = torch.tensor([len(source) for source in sources])
    padded = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
    model.prefill(slots, torch.tensor(places), padded, lengths)


class Prefixes:
    """What the hypotheses in the slots are, by the decisions that the slots are told."""

    def __init__(self, model):
        self.model = model
        self.of_slots = {}

    def logits(self, place):
        source, hypotheses = self.of_slots[place]
        memory = source.expand(len(hypotheses), -1)
        lengths = torch.full((len(hypotheses),), len(source))
        hidden = self.model(memory, lengths, torch.tensor(hypotheses))
        return self.model.logits(hidden)[:, -1]


@pytest.mark.parametrize(
    "settings",
    [{}, {"norm": "pre"}, {"d_k": 3, "d_v": 5}, {"learned_positions": 9}],
)
def test_a_step_gives_the_logits_of_each_prefix_wherever_a_slot_stands(settings):
    model = new_model(**settings)
    slots = model.new_slots(SHAPE)
    num_slots, num_hypotheses = SHAPE.num_slots, SHAPE.num_hypotheses
    prefixes = Prefixes(model)
    generator = torch.Generator().manual_seed(2)

    def random(high):
        return torch.randint(high, (num_slots, num_hypotheses), generator=generator)

    with torch.no_grad():
        for number in range(12):
            # Sentences come while others are underway, and take the place of some.
            new = {0: [0, 2, 3], 3: [1], 6: [3, 0]}.get(number, [])
            sources = [new_source(2 + place, seed=number) for place in new]
            if new:
                prefill(model, slots, new, sources)
            for place, source in zip(new, sources, strict=True):
                prefixes.of_slots[place] = source, [[] for _ in range(num_hypotheses)]
            tokens = random(V)
            stays = torch.tensor(
                [place in prefixes.of_slots and number % 4 != place for place in range(num_slots)]
            )
            for place, (_, hypotheses) in prefixes.of_slots.items():
                for ids, token in zip(hypotheses, tokens[place].tolist(), strict=True):
                    ids.append(token)
            found = model.step_slots(tokens, slots).view(num_slots, num_hypotheses, V)
            for place in prefixes.of_slots:
                torch.testing.assert_close(found[place], prefixes.logits(place))
            parents = random(num_hypotheses)
            slots.reorder(parents, stays)
            for place, (source, hypotheses) in list(prefixes.of_slots.items()):
                if stays[place]:
                    chosen = [list(hypotheses[parent]) for parent in parents[place].tolist()]
                    prefixes.of_slots[place] = source, chosen
                else:
                    del prefixes.of_slots[place]


def test_only_dot_product_attention_to_everything_is_decoded_in_slots():
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
