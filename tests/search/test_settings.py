"""Search settings: valid combinations, and the defaults that a model brings."""

import pytest

from tfm.config import SearchConfig
from tfm.errors import UsageError


@pytest.mark.parametrize(
    ("search", "name"),
    [("sample", "beam_size"), ("exact", "num_groups"), ("beam", "seed"), ("sample", "node_limit")],
)
def test_a_setting_without_effect_is_refused_even_if_it_equals_the_default(search, name):
    given = {"search": search, name: getattr(SearchConfig(), name)}
    with pytest.raises(UsageError, match=f"^{name}.* has no effect on search {search}, only on "):
        SearchConfig.for_model({}, given)


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
    with pytest.raises(
        UsageError, match="no effect on the scores of given targets: leave out beam_size"
    ):
        SearchConfig.for_targets({}, {"beam_size": 2, "length_penalty": 1.0})
