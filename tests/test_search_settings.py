"""Settings of a search: valid combinations, and the defaults of a model."""

import pytest

from tfm.config import SearchConfig
from tfm.errors import UsageError

SAMPLING = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 2}
GROUPS = {"num_groups": 2, "diversity_strength": 1.0}


def problems(**settings):
    return list(SearchConfig(**settings).problems())


@pytest.mark.parametrize("search", ["beam", "sample", "exact"])
def test_the_defaults_are_valid_for_every_search(search):
    assert problems(search=search) == []


@pytest.mark.parametrize(
    ("search", "settings"),
    [
        ("beam", {"beam_size": 8, **GROUPS}),
        ("sample", {**SAMPLING, "n_best": 100}),
        ("exact", {"beam_size": 8, "node_limit": 5, "n_best": 8}),
    ],
)
def test_the_settings_of_a_search_are_valid(search, settings):
    assert problems(search=search, **settings) == []


@pytest.mark.parametrize(
    ("search", "name", "value"),
    [
        *(("beam", *item) for item in {**SAMPLING, "node_limit": 5}.items()),
        *(("exact", *item) for item in {**SAMPLING, **GROUPS}.items()),
        *(("sample", *item) for item in {"beam_size": 8, "node_limit": 5, **GROUPS}.items()),
    ],
)
def test_settings_of_another_search_are_refused_by_name(search, name, value):
    found = problems(search=search, **{name: value})
    assert any(
        problem.startswith(f"{name} has no effect on search {search}, ") for problem in found
    )


@pytest.mark.parametrize(
    ("search", "name"),
    [("sample", "beam_size"), ("exact", "num_groups"), ("beam", "seed"), ("sample", "node_limit")],
)
def test_settings_of_another_search_are_refused_even_with_default_values(search, name):
    given = {"search": search, name: getattr(SearchConfig(), name)}
    with pytest.raises(UsageError, match=f"^{name} has no effect on search {search}, only on "):
        SearchConfig.for_model({}, given)


def test_groups_must_divide_the_beam_and_diversity_needs_groups():
    assert problems(beam_size=6, num_groups=4) == ["num_groups 4 does not divide a beam of 6"]
    assert problems(num_groups=0) == ["num_groups is 0, but must be at least 1"]
    [problem] = problems(diversity_strength=2.0)
    assert problem.startswith("diversity_strength has no effect on a single group")


def test_n_best_is_at_most_the_beam_size():
    message = "n_best 5 needs a beam of at least that size, not 4"
    assert problems(n_best=5) == problems(n_best=5, search="exact") == [message]


def test_given_settings_override_the_defaults_of_the_model():
    defaults = {"beam_size": 21, "length_penalty": 0.3}
    config = SearchConfig.for_model(defaults, {"length_penalty": 1.0, "n_best": 10})
    assert config == SearchConfig(beam_size=21, length_penalty=1.0, n_best=10)


def test_defaults_of_the_model_for_another_search_are_ignored():
    defaults = {"beam_size": 21, "length_penalty": 0.3}
    config = SearchConfig.for_model(defaults, {"search": "sample"})
    assert config == SearchConfig(search="sample", length_penalty=0.3)
    config = SearchConfig.for_model({"search": "sample", "top_k": 5}, {"search": "beam"})
    assert config == SearchConfig()
    config = SearchConfig.for_model({"search": "sample", "top_k": 5}, {"seed": 7})
    assert config == SearchConfig(search="sample", top_k=5, seed=7)


@pytest.mark.parametrize(
    ("given", "name"),
    [({"beem": 3}, "beem"), ({"search": "guess"}, "search"), ({"beam_size": 0}, "beam_size")],
)
def test_unknown_and_impossible_values_are_refused(given, name):
    with pytest.raises(UsageError, match=name):
        SearchConfig.for_model({}, given)
