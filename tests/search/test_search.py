"""All searches: equal to a slow reference, alone and in any batch, by plain and by fast paths."""

import math
from unittest.mock import Mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from search.workshop import (
    ALPHAS,
    EVERY_MODEL,
    EVERY_SEARCH,
    MODELS,
    SEARCHES,
    SOURCES,
    WORDS,
    Reference,
    Table,
    assert_same,
    find,
    force,
    joined,
    settings_of,
    transformer,
)
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.errors import CheckpointError
from tfm.search import active
from tfm.search.active import ActiveHypotheses
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble
from tfm.search.search import search
from tfm.vocabulary.subword import EOS, UNK


@st.composite
def searches(draw):
    """Draw a kind of search, and settings with an effect on it."""
    kind = draw(st.sampled_from([*SEARCHES]))
    config = {
        "length_penalty": draw(st.sampled_from(ALPHAS)),
        "max_extra_length": draw(st.integers(1, 2 if kind == "exact" else 5)),
        "min_length": draw(st.sampled_from([0, 1, 3, 99])),
        "no_repeat_ngram": draw(st.sampled_from([None, 1, 2, 3])),
    }
    if kind in ("beam", "exact"):
        config["beam_size"] = draw(st.integers(2, 5))
        config["n_best"] = draw(st.integers(1, config["beam_size"]))
    elif kind == "diverse":
        config["num_groups"] = draw(st.integers(2, 3))
        config["beam_size"] = config["num_groups"] * draw(st.integers(1, 3))
        config["n_best"] = draw(st.integers(1, config["beam_size"]))
        config["diversity_strength"] = draw(st.sampled_from([0.0, 0.3, 1.0, 5.0, 1000.0]))
        config["diversity_steps"] = draw(st.sampled_from([None, 1, 2]))
    elif kind == "sample":
        config["temperature"] = draw(st.sampled_from([0.1, 0.5, 1.0, 3.0]))
        config["top_k"] = draw(st.sampled_from([None, 1, 2, 3, 9]))
        config["top_p"] = draw(st.sampled_from([None, 0.0, 0.3, 0.7, 1.0]))
        config["epsilon"] = draw(st.sampled_from([None, 0.0, 0.2, 0.6]))
        config["seed"] = draw(st.integers(0, 9))
        config["n_best"] = draw(st.integers(1, 5))
    return kind, config


SOURCE = st.lists(st.sampled_from(WORDS), max_size=3).map(lambda words: [*words, EOS])
PREFIX = st.one_of(st.just([]), st.lists(st.sampled_from([*WORDS, UNK]), max_size=9))


@given(
    table=st.builds(
        Table,
        st.integers(0, 10**6),
        spread=st.sampled_from([0.5, 1.5, 4.0]),
        max_positions=st.sampled_from([None, None, 4]),
    ),
    case=searches(),
    batch=st.lists(st.tuples(SOURCE, PREFIX, st.integers(0, 99)), min_size=1, max_size=5),
)
@example(  # no word is left before the minimum length
    table=Table(),
    case=("beam", {"min_length": 99, "no_repeat_ngram": 1, "max_extra_length": 4}),
    batch=[([EOS], [], 0), ([4, 5, EOS], [], 1)],
)
@example(  # of two words, one is ruled out, and an unknown word of the prefix is excluded anyway
    table=Table(spread=0.5),
    case=("beam", {"min_length": 99, "no_repeat_ngram": 1, "max_extra_length": 4}),
    batch=[([EOS], [UNK], 0)],
)
def test_a_search_equals_the_slow_reference(table, case, batch):
    kind, config = case
    sources, prefixes, lines = map(list, zip(*batch, strict=True))
    found = find(kind, table, sources, prefixes if any(prefixes) else None, lines, **config)
    for best, source, prefix, line in zip(found, sources, prefixes, lines, strict=True):
        expected = Reference(table, source, settings_of(kind, **config), prefix).outputs(line)
        assert_same(best, expected)
        assert {hypothesis.proven for hypothesis in best} == {True if kind == "exact" else None}


# Only if more than one of six sentences are finished are they removed.
MANY_SOURCES = [*SOURCES, *SOURCES[:2]]
PREFIXES = [[4, 6] * 6, [], [6] * 9, [4, 6, 6, 4] * 2, [6] * 12, []]


@EVERY_SEARCH
@EVERY_MODEL
def test_any_batch_with_prefixes_followed_at_once_equals_single_sentences_token_by_token(
    kind, model, monkeypatch
):
    """The outputs have the probabilities that forced decoding computes."""
    config = {"exact": {}, "diverse": {"max_extra_length": 9, "diversity_strength": 5.0}}
    config = config.get(kind, {"max_extra_length": 9})

    def outputs(order):
        chosen = [MANY_SOURCES[i] for i in order], [PREFIXES[i] for i in order]
        return find(kind, joined(MODELS[model]()), *chosen, order, **config)

    with monkeypatch.context() as patch:
        patch.setattr(ActiveHypotheses, "_follow_prefixes", lambda self: None)
        expected = [outputs([index])[0] for index in range(6)]
    for order, part_rows in (([0, 1, 2, 3, 4, 5], 1024), ([4, 2, 5, 0, 3, 1], 6), ([3], 1024)):
        monkeypatch.setattr(active, "_PREFILL_ROWS", part_rows)
        for best, index in zip(outputs(order), order, strict=True):
            assert_same(best, expected[index])
    if model != "prepacked":
        for source, prefix, best in zip(MANY_SOURCES, PREFIXES, expected, strict=True):
            assert all(list(each.tokens[: len(prefix)]) == prefix for each in best)
            assert_same(best, force(MODELS[model](), source, [each.tokens for each in best]))


def test_lines_are_counted_from_one_unless_they_have_numbers():
    config, batch = settings_of("sample"), batch_of(SOURCES)
    numbered = search(Table(), *batch, config, line_numbers=range(1, 5))
    assert search(Table(), *batch, config) == numbered
    assert search(Table(), *batch, config, line_numbers=range(2, 6)) != numbered


@EVERY_SEARCH
def test_a_long_prefix_takes_no_more_steps_than_a_short_one(kind):
    counts = []
    for size in (4, 400):
        model = Ensemble([transformer()])
        model.step_rows = Mock(wraps=model.step_rows)
        find(kind, model, SOURCES[:2], [[4] * size, []], min_length=99)
        counts.append(model.step_rows.call_count)
    assert counts[1] <= counts[0] + 2


# --- ensembles


@EVERY_SEARCH
def test_an_ensemble_of_copies_equals_the_model_within_the_fewest_positions(kind):
    model, config = transformer(), {"max_extra_length": 50, "length_penalty": 3.0}
    if kind == "exact":
        config["node_limit"] = 20
    limited = Ensemble([model, transformer(learned_positions=5), model])
    assert limited.max_positions == 5
    found = find(kind, limited, **config)
    assert all(len(hypothesis.tokens) < 5 for best in found for hypothesis in best)
    for best, expected in zip(find(kind, Ensemble([model] * 3)), find(kind, model), strict=True):
        assert_same(best, expected)


def test_an_ensemble_averages_probabilities():
    models, batch = [transformer(seed) for seed in range(3)], batch_of(SOURCES)
    ensemble, tokens = Ensemble(models), torch.tensor([[1]] * 4)
    with torch.inference_mode():
        found = ensemble.step(tokens, ensemble.start(*batch))
        single = [model.step(tokens, model.start(*batch)) for model in models]
    mean = torch.stack([logits.softmax(dim=-1) for logits in single]).mean(dim=0)
    torch.testing.assert_close(found.exp(), mean)


# --- a model whose probabilities are not finite is an error, not an output

MESSAGE = "the model gives no finite probabilities: its weights are damaged, or its training div"


def broken(change):
    """Return a model with the weights of a training that diverged."""
    model = transformer()
    with torch.no_grad():
        for weight in model.parameters():
            change(weight)
    return model


def nan(weight):
    return weight.fill_(math.nan)


def huge(weight):
    return weight.mul_(1e30)


@EVERY_SEARCH
@pytest.mark.parametrize("change", [nan, huge])
@pytest.mark.parametrize("prefixes", [None, [[4], [], [5, 6], [4]]])
def test_a_model_that_diverged_fails_clearly_alone_and_in_an_ensemble(kind, change, prefixes):
    model = broken(change)
    more = [{}, {"min_length": 2}, {"length_penalty": -1.0}]
    more += [{"top_k": 5}, {"top_p": 0.5}] if kind == "sample" else []
    for config in more:
        for each in (model, Ensemble([transformer(), model])):
            with pytest.raises(CheckpointError, match=MESSAGE):
                find(kind, each, prefixes=prefixes, **config)
    with torch.inference_mode(), pytest.raises(CheckpointError, match=MESSAGE):
        forced_decoding([model], *batch_of(SOURCES), [[5], [], [6, 4], [4]], SearchConfig())
