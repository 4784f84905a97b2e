"""The recurrent baseline: compared with torch's cells, and properties for any weights."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from model_properties import (
    assert_each_parameter_learns,
    assert_only_training_drops,
    assert_padding_changes_nothing,
    assert_the_future_is_hidden,
    assert_ties,
    logits_of,
)
from small_models import NO_DROPOUT, moved, random_batch, recurrent
from torch import nn

from tfm.config import RecurrentConfig
from tfm.model.recurrent import Recurrent
from tfm.model.source_attention import reinforce_loss
from tfm.vocabulary.subword import BOS

V = 13
SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 3, "d_model": 6, **NO_DROPOUT}
KINDS = [
    {"cell": cell, "attention": attention, "input_feeding": input_feeding}
    for cell, attention, input_feeding in itertools.product(
        ["lstm", "gru"], ["dot-product", "additive"], [True, False]
    )
]
LOCAL = {"source_attention": "local-p", "local_window": 2}
KINDS += [
    {"attention": "additive", "encoder_width": 4},
    {"attention": "dot-product", **LOCAL, "source_attention": "local-m", "input_feeding": False},
    {"attention": "dot-product", **LOCAL},
    {"attention": "additive", **LOCAL, "encoder_width": 8, "input_feeding": False},
]
HARD = [{"source_attention": "hard", "input_feeding": feeding} for feeding in (True, False)]


def name_of(changes):
    return " ".join(f"{key}={value}" for key, value in changes.items())


EVERY_KIND_AND_HARD = pytest.mark.parametrize("changes", [*KINDS, *HARD], ids=name_of)
EVERY_KIND = pytest.mark.parametrize("changes", KINDS, ids=name_of)


new_batch = partial(random_batch, V, [4, 6, 1], 5)


def new_model(seed=0, dtype=torch.float64, **changes):
    return moved(recurrent(V, seed, **{**SHAPE, **changes}).to(dtype), -0.5, 0.5)


def by_hand(model, config, source, target_input):
    """Compute outputs and attention weights of one sentence step by step with torch's cells."""
    scale = config.d_model**0.5
    encoder = (nn.LSTM if config.cell == "lstm" else nn.GRU)(
        config.d_model, config.encoded_width // 2, config.num_encoder_layers, bidirectional=True
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
        row = weights_by_hand(model.decoder.attention, config, torch.stack(scores), x, len(rows))
        output = torch.tanh(model.decoder.output(torch.cat([row @ keys, x])))
        outputs.append(output)
        rows.append(row)
    return torch.stack(outputs), torch.stack(rows)


def weights_by_hand(attention, config, scores, x, position):
    """Return the attention weights [S] of one state by the formulas of the papers."""
    if config.source_attention == "hard":
        return F.one_hot(scores.argmax(), len(scores)).double()
    if config.source_attention == "soft":
        return scores.softmax(dim=0)
    center = min(position + 1, len(scores))
    if config.source_attention == "local-p":
        inner, outer = attention.position[0].weight, attention.position[2].weight[0]
        center = len(scores) * torch.sigmoid(outer @ torch.tanh(inner @ x))
    distances = torch.arange(1, len(scores) + 1) - center
    inside = abs(distances) <= config.local_window
    weights = torch.where(inside, scores.exp(), 0.0) / scores[inside].exp().sum()
    if config.source_attention == "local-p":
        weights = weights * torch.exp(-(distances**2) / (2 * (config.local_window / 2) ** 2))
    return weights


@EVERY_KIND_AND_HARD
def test_training_and_step_by_step_decoding_equal_the_formulas(changes):
    model = new_model(**changes)
    config = RecurrentConfig(**{**SHAPE, **changes})
    source, lengths, target = new_batch()
    hidden_states = model(source, lengths, target)
    weights = model.decode(source, lengths, target).weights
    state = model.start(source, lengths)
    steps = torch.cat([model.step(target[:, t : t + 1], state) for t in range(5)], dim=1)
    torch.testing.assert_close(steps, model.logits(hidden_states), rtol=0, atol=1e-12)
    at_once = model.step(target, model.start(source, lengths))
    torch.testing.assert_close(at_once, steps, rtol=0, atol=1e-12)
    assert hidden_states.shape == (3, 5, SHAPE["d_model"])
    assert weights.shape == (3, 5, source.size(1))
    for row, length in enumerate(lengths.tolist()):
        outputs, rows = by_hand(model, config, source[row, :length], target[row])
        torch.testing.assert_close(hidden_states[row], outputs, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(weights[row, :, :length], rows, rtol=1e-10, atol=1e-10)


@EVERY_KIND
def test_padding_and_the_future_are_hidden_and_each_parameter_learns(changes):
    model = new_model(**changes, tied_embeddings="none")
    assert_padding_changes_nothing(model, *new_batch())
    assert_the_future_is_hidden(model, *new_batch())
    assert_each_parameter_learns(model, new_batch())


@given(st.data())
def test_cached_decoding_equals_full_decoding(data):
    """Any hypotheses are continued, and any sentences are dropped."""
    model = new_model(**data.draw(st.sampled_from([*KINDS, *HARD]))).eval()
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
    plain, dropping = (new_model(input_feeding=input_feeding, **{name: p}) for p in (0.0, 0.5))
    assert_only_training_drops(plain, dropping, new_batch())


def test_tied_embeddings_are_one_parameter():
    assert_ties(new_model)
    assert not list(new_model().buffers())


def test_the_forget_gates_of_an_lstm_start_open():
    config = RecurrentConfig(**SHAPE, cell="lstm", tied_embeddings="two-way")
    model = Recurrent(config, (5, V))
    for layers in (model.encoder, model.decoder.layers):
        for direction in layers.all_weights:
            *_, bias, hidden_bias = direction
            into, forget, *gates = (bias + hidden_bias).chunk(4)
            assert (forget == 1).all()
            assert not torch.cat([into, *gates]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", [KINDS[2], KINDS[5], KINDS[3]], ids=name_of)
def test_half_precision_gives_almost_the_same_logits_and_finite_gradients(changes, dtype):
    model = new_model(dtype=torch.float32, **changes)
    batch = new_batch()
    expected = logits_of(model, *batch)
    with torch.autocast("cpu", dtype):
        logits = logits_of(model, *batch)
        state = model.start(*batch[:2])
        first = model.step(batch[2][:, :1], state)
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)
    torch.testing.assert_close(first.float(), expected[:, :1], rtol=0.1, atol=0.1)
    logits.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("changes", HARD, ids=name_of)
def test_hard_attention_samples_in_training_alone_and_all_of_it_learns(changes):
    model, batch = new_model(**changes), new_batch()
    lengths = batch[1]
    assert not model.decode(*batch).samples.numel()
    outputs, weights, samples = model.train().decode(*batch)
    again = model.decode(*batch)
    assert not torch.equal(weights, again.weights)
    is_soft = samples[..., 0] == 0
    assert (weights[~is_soft].amax(-1) == 1).all()
    assert (weights[is_soft & (lengths > 1)[:, None]].amax(-1) < 1).all()
    assert not weights.masked_select(torch.arange(6) >= lengths[:, None, None]).any()
    loss = outputs.sin().sum() + reinforce_loss(samples.flatten(0, 1), torch.rand(15).double())
    model.logits(outputs).sum().backward(retain_graph=True)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_positions_are_sampled_as_often_as_their_weights_say():
    model = new_model(source_attention="hard", input_feeding=False)
    source, lengths, target = (x[:1].expand(4000, *x.shape[1:]) for x in new_batch())
    soft = new_model(input_feeding=False).decode(source[:1], lengths[:1], target[:1]).weights[0, 0]
    weights = model.train().decode(source, lengths, target).weights[:, 0]
    is_hard = weights.amax(-1) == 1
    assert is_hard.double().mean() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(weights[is_hard].mean(0), soft, rtol=0, atol=0.05)


def test_the_expected_gradient_of_reinforce_is_that_of_the_expected_loss():
    """With any baseline; the loss itself is 0, and the baseline approaches the likelihood."""
    torch.manual_seed(0)
    scores, nll = torch.randn(4).double().requires_grad_(), 5 * torch.rand(4).double()
    weights, log_weights = scores.softmax(0), scores.log_softmax(0)
    entropy, baseline = -weights @ log_weights, torch.tensor(7.0).double().requires_grad_()
    loss = 0.1 * weights @ nll - 0.002 * entropy
    [expected] = torch.autograd.grad(loss, scores, retain_graph=True)
    sampled = [
        weights[i].detach()
        * reinforce_loss(torch.stack([log_weights[i], entropy, baseline])[None], nll[i : i + 1])
        for i in range(4)
    ]
    assert sum(sampled) == 0
    found, of_baseline = torch.autograd.grad(sum(sampled), (scores, baseline))
    torch.testing.assert_close(found, expected)
    assert of_baseline > 0
