"""The recurrent baseline: compared with torch's cells, and properties for any weights."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import moved, random_batch, recurrent
from torch import nn

from tfm.config import RecurrentConfig
from tfm.data.subword import BOS, PAD
from tfm.model.recurrent import Recurrent

V = 13
SHAPE = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "d_model": 6,
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
}
KINDS = [
    {"cell": cell, "attention": attention, "input_feeding": input_feeding}
    for cell, attention, input_feeding in itertools.product(
        ["lstm", "gru"], ["dot-product", "additive"], [True, False]
    )
]


def name_of(changes):
    return " ".join(f"{key}={value}" for key, value in changes.items())


EVERY_KIND = pytest.mark.parametrize("changes", KINDS, ids=name_of)


new_batch = partial(random_batch, V, [4, 6, 1], 5)


def new_model(seed=0, dtype=torch.float64, **changes):
    return moved(recurrent(V, seed, **{**SHAPE, **changes}).to(dtype), -0.5, 0.5)


def logits_of(model, source, lengths, target_input):
    return model.logits(model(source, lengths, target_input))


def other_tokens(tokens):
    return 4 + (tokens - 3) % (V - 4)


def by_hand(model, config, source, target_input):
    """Compute outputs and attention weights of one sentence step by step with torch's cells."""
    scale = config.d_model**0.5
    encoder = (nn.LSTM if config.cell == "lstm" else nn.GRU)(
        config.d_model, config.d_model // 2, config.num_encoder_layers, bidirectional=True
    ).double()
    encoder.load_state_dict(model.encoder.state_dict())
    keys, final = encoder(F.embedding(source, model.source_embedding.weight) * scale)
    parts = [part[-2:].flatten() for part in (final if config.cell == "lstm" else [final])]
    initial = torch.tanh(model.bridge(torch.cat(parts)))
    states = initial.view(config.num_decoder_layers, len(parts), config.d_model)

    cells = []
    for index in range(config.num_decoder_layers):
        weights = [
            getattr(model.decoder.layers, f"{name}_l{index}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        kind = nn.LSTMCell if config.cell == "lstm" else nn.GRUCell
        cell = kind(weights[0].size(1), config.d_model).double()
        cell.load_state_dict(dict(zip(cell.state_dict(), weights, strict=True)))
        cells.append(cell)

    states = [tuple(state) if config.cell == "lstm" else state[0] for state in states]
    query_weight = model.decoder.attention.query.weight
    output, outputs, rows = torch.zeros(config.d_model).double(), [], []
    for token in target_input:
        x = model.target_embedding.weight[token] * scale
        if config.input_feeding:
            x = torch.cat([x, output])
        for index, cell in enumerate(cells):
            states[index] = cell(x, states[index])
            x = states[index][0] if config.cell == "lstm" else states[index]
        query = query_weight @ x
        if config.attention == "additive":
            v, key_weight = model.decoder.attention.additive_weight, model.decoder.attention.key
            scores = [v[0] @ torch.tanh(query + key_weight.weight @ key) for key in keys]
        else:
            scores = [query @ key / scale for key in keys]
        row = torch.stack(scores).softmax(dim=0)
        output = torch.tanh(model.decoder.output(torch.cat([row @ keys, x])))
        outputs.append(output)
        rows.append(row)
    return torch.stack(outputs), torch.stack(rows)


@EVERY_KIND
def test_training_and_step_by_step_decoding_equal_the_formulas(changes):
    model = new_model(**changes)
    config = RecurrentConfig(**{**SHAPE, **changes})
    source, lengths, target = new_batch()
    hidden_states = model(source, lengths, target)
    weights = model.attention_weights(source, lengths, target)
    state = model.start(source, lengths)
    steps = torch.cat([model.step(target[:, t : t + 1], state) for t in range(5)], dim=1)
    torch.testing.assert_close(steps, model.logits(hidden_states), rtol=0, atol=1e-12)
    assert hidden_states.shape == (3, 5, SHAPE["d_model"])
    assert weights.shape == (3, 5, source.size(1))
    for row, length in enumerate(lengths.tolist()):
        outputs, rows = by_hand(model, config, source[row, :length], target[row])
        torch.testing.assert_close(hidden_states[row], outputs, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(weights[row, :, :length], rows, rtol=1e-10, atol=1e-10)


@EVERY_KIND
def test_source_padding_does_not_change_logits(changes):
    model = new_model(**changes)
    source, lengths, target = new_batch()
    padded = logits_of(model, source, lengths, target)
    other_padding = source.clone()
    for row, length in enumerate(lengths):
        other_padding[row, length:] = other_tokens(source[row, length:])
        unpadded = source[row : row + 1, :length]
        single = logits_of(model, unpadded, lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(padded[row : row + 1], single)
    assert torch.equal(logits_of(model, other_padding, lengths, target), padded)
    more_padding = F.pad(source, (0, 3), value=PAD)
    torch.testing.assert_close(logits_of(model, more_padding, lengths, target), padded)


@EVERY_KIND
def test_the_decoder_cannot_see_the_future(changes):
    model = new_model(**changes)
    source, lengths, target = new_batch()
    before = logits_of(model, source, lengths, target)
    for position in range(1, target.size(1)):
        changed = target.clone()
        changed[:, position:] = other_tokens(changed[:, position:])
        after = logits_of(model, source, lengths, changed)
        torch.testing.assert_close(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position], before[:, position])


@settings(max_examples=25)
@given(st.data())
def test_cached_decoding_equals_full_decoding(data):
    """Any hypotheses are continued, and any sentences are dropped."""
    model = new_model(**data.draw(st.sampled_from(KINDS))).eval()
    source, lengths, _ = new_batch()
    sentences = torch.arange(len(source))
    tokens = torch.full((len(source), 1, 1), BOS)  # [B, K, t]
    with torch.no_grad():
        state = model.start(source, lengths)
        for _ in range(data.draw(st.integers(1, 5))):
            logits = model.step(tokens[:, :, -1], state)
            num_hypotheses = tokens.size(1)
            rows = sentences.repeat_interleave(num_hypotheses)
            full = logits_of(model, source[rows], lengths[rows], tokens.flatten(0, 1))
            torch.testing.assert_close(logits.flatten(0, 1), full[:, -1], rtol=0, atol=1e-12)

            kept = [i for i in range(len(sentences)) if data.draw(st.booleans())] or [0]
            size = data.draw(st.integers(1, 4))
            parents = torch.tensor(
                [[data.draw(st.integers(0, num_hypotheses - 1)) for _ in range(size)] for _ in kept]
            )
            chosen = torch.tensor(kept)[:, None] * num_hypotheses + parents
            newest = torch.randint(4, V, (len(kept), size, 1))
            tokens = torch.cat([tokens.flatten(0, 1)[chosen], newest], dim=2)
            sentences = sentences[kept]
            state.reorder(chosen)
            assert len(state.memory.keys) == len(state.memory.values) == len(kept)


@pytest.mark.parametrize("name", ["dropout", "embedding_dropout", "attention_dropout"])
@pytest.mark.parametrize("input_feeding", [True, False])
def test_each_dropout_acts_only_in_training(name, input_feeding):
    plain = new_model(input_feeding=input_feeding)
    dropping = new_model(input_feeding=input_feeding, **{name: 0.5})
    batch = new_batch()
    torch.testing.assert_close(logits_of(plain.train(), *batch), logits_of(plain.eval(), *batch))
    torch.testing.assert_close(logits_of(dropping.eval(), *batch), logits_of(plain, *batch))
    first, second = (logits_of(dropping.train(), *batch) for _ in range(2))
    assert not torch.allclose(first, second)


@EVERY_KIND
def test_every_parameter_gets_a_gradient(changes):
    model = new_model(**changes, tied_embeddings="none")
    logits_of(model, *new_batch()).sin().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_tied_embeddings_are_one_parameter():
    sharing = {"three-way": (True, True), "two-way": (False, True), "none": (False, False)}
    for tied, expected in sharing.items():
        model = new_model(tied_embeddings=tied)
        target = model.target_embedding.weight
        assert (target is model.source_embedding.weight, target is model.output_weight) == expected
        parameters = dict(model.named_parameters())
        storages = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
        assert len(storages) == len(parameters)
        assert sum(p.shape == (V, 6) for p in parameters.values()) == 3 - sum(expected)
        assert not list(model.buffers())


def test_the_forget_gates_of_an_lstm_start_open():
    config = RecurrentConfig(**SHAPE, cell="lstm", tied_embeddings="two-way")
    model = Recurrent(config, source_vocab_size=5, target_vocab_size=V)
    for layers in (model.encoder, model.decoder.layers):
        for direction in layers.all_weights:
            *_, bias, hidden_bias = direction
            into, forget, *gates = (bias + hidden_bias).chunk(4)
            assert (forget == 1).all()
            assert not torch.cat([into, *gates]).any()


@pytest.mark.parametrize("changes", [KINDS[2], KINDS[5]], ids=name_of)
def test_bf16_products_give_almost_the_same_logits_and_finite_gradients(changes):
    model = new_model(dtype=torch.float32, **changes)
    batch = new_batch()
    expected = logits_of(model, *batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, *batch)
        state = model.start(*batch[:2])
        first = model.step(batch[2][:, :1], state)
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)
    torch.testing.assert_close(first.float(), expected[:, :1], rtol=0.1, atol=0.1)
    logits.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
