"""Search settings: valid combinations, and the defaults that a model brings."""

import pytest

from tfm.config import SearchConfig
from tfm.errors import UsageError

OF_SAMPLING = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "epsilon": 0.1, "seed": 2}
OF_BEAMS = {"num_groups": 2, "diversity_strength": 1.0, "diversity_steps": 1}
LABELS = {"beam_size": "beam_size (--beam)"}  # of flags with another name


def problems(**settings):
    return list(SearchConfig(**settings).problems())


@pytest.mark.parametrize(
    ("search", "name", "value"),
    [
        *(("beam", *item) for item in {**OF_SAMPLING, "node_limit": 5}.items()),
        *(("exact", *item) for item in {**OF_SAMPLING, **OF_BEAMS}.items()),
        *(("sample", *item) for item in {"beam_size": 8, "node_limit": 5, **OF_BEAMS}.items()),
    ],
)
def test_settings_of_another_search_are_refused_by_name(search, name, value):
    found = problems(search=search, **{name: value})
    label = LABELS.get(name, name)
    assert any(each.startswith(f"{label} has no effect on search {search}, ") for each in found)


@pytest.mark.parametrize(
    ("search", "name"),
    [("sample", "beam_size"), ("exact", "num_groups"), ("beam", "seed"), ("sample", "node_limit")],
)
def test_a_setting_without_effect_is_refused_even_if_it_equals_the_default(search, name):
    given = {"search": search, name: getattr(SearchConfig(), name)}
    with pytest.raises(UsageError) as refused:
        SearchConfig.for_model({}, given)
    label = LABELS.get(name, name)
    assert str(refused.value).startswith(f"{label} has no effect on search {search}, only on ")


def test_groups_divide_the_beam_and_strength_needs_groups():
    assert problems(beam_size=6, num_groups=4) == [
        "num_groups is 4, but must divide the beam size 6"
    ]
    assert problems(num_groups=0) == ["num_groups is 0, but must be at least 1"]
    [problem] = problems(diversity_strength=2.0)
    assert problem.startswith("diversity_strength has no effect on a single group")
    [problem] = problems(diversity_steps=1)
    assert problem.startswith("diversity_steps has no effect on a single group")


def test_n_best_is_at_most_the_beam_size():
    message = "n_best is 5, but must be at most the beam size 4"
    assert problems(n_best=5) == problems(n_best=5, search="exact") == [message]


def test_given_settings_take_precedence_over_those_of_the_model():
    defaults = {"beam_size": 21, "length_penalty": 0.3}
    config = SearchConfig.for_model(defaults, {"length_penalty": 1.0, "n_best": 10})
    assert config == SearchConfig(beam_size=21, length_penalty=1.0, n_best=10)


def test_settings_of_the_model_for_another_search_are_dropped():
    defaults = {"beam_size": 21, "length_penalty": 0.3}
    config = SearchConfig.for_model(defaults, {"search": "sample"})
    assert config == SearchConfig(search="sample", length_penalty=0.3)
    config = SearchConfig.for_model({"search": "sample", "top_k": 5}, {"search": "beam"})
    assert config == SearchConfig()
    config = SearchConfig.for_model({"search": "sample", "top_k": 5}, {"seed": 7})
    assert config == SearchConfig(search="sample", top_k=5, seed=7)


def test_given_targets_leave_nothing_to_search():
    defaults = {"search": "sample", "top_k": 5, "length_penalty": 0.3}
    assert SearchConfig.for_targets(defaults, {"max_tokens": 9}).max_tokens == 9
    with pytest.raises(UsageError, match="no effect on the scores of given targets: beam_size; "):
        SearchConfig.for_targets({}, {"beam_size": 2, "length_penalty": 1.0})
