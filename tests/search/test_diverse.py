"""Diverse beam search, compared with a slow reference search."""

from functools import cache, partial

import pytest
import small_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import batch_of

from tfm.config import SearchConfig
from tfm.search import search
from tfm.vocabulary.subword import BOS, EOS

WORDS = (4, 5, 6, 7)
V = 8
SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS]]


transformer = partial(small_models.transformer, V, sharpness=2)


def find(model, sources=SOURCES, prefixes=None, **config):
    settings = SearchConfig(**{"max_extra_length": 4, "min_length": 0, **config})
    with torch.inference_mode():
        return search(model, *batch_of(sources), settings, prefixes=prefixes)


class SlowGroup:
    """One group of a slow diverse beam search of one sentence."""

    def __init__(self, size, max_length, alpha):
        self.live, self.finished = [((BOS,), 0.0)], []
        self.size, self.max_length, self.alpha = size, max_length, alpha

    def is_over(self, length):
        """Return whether no live hypothesis can enter the best."""
        bounds = [p / ((5 + self.max_length) / 6) ** self.alpha for _, p in self.live]
        full = len(self.finished) == self.size
        return not bounds or (full and max(bounds) <= self.finished[-1][2])

    def step(self, log_probs_after, length, times_chosen, strength):
        allowed = [EOS] if length == self.max_length else [EOS, *WORDS]
        candidates = []
        for prefix, total in self.live:
            log_probs = log_probs_after(prefix)
            candidates += [((*prefix, t), total + log_probs[t]) for t in allowed]
        candidates.sort(key=lambda c: -(c[1] - strength * times_chosen[c[0][-1]]))
        ended = [candidate for candidate in candidates[: self.size] if candidate[0][-1] == EOS]
        self.finished += [
            (prefix[1:-1], p, p / ((5 + length) / 6) ** self.alpha) for prefix, p in ended
        ]
        self.finished = sorted(self.finished, key=lambda f: -f[2])[: self.size]
        others = [candidate for candidate in candidates if candidate[0][-1] != EOS]
        self.live = [] if ended and self.size == 1 else others[: self.size]
        for prefix, _ in [*ended, *self.live]:
            times_chosen[prefix[-1]] += 1


def slow_search(model, source, *, num_groups, size, strength, steps, alpha, max_length):
    """Return the outputs of each group, best first; alpha must not be negative."""

    @cache
    def log_probs_after(prefix):
        with torch.no_grad():
            hidden_states = model(*batch_of([source]), torch.tensor([prefix]))
            return model.logits(hidden_states)[0, -1].log_softmax(dim=-1).tolist()

    groups = [SlowGroup(size, max_length, alpha) for _ in range(num_groups)]
    for length in range(1, max_length + 1):
        times_chosen = [0] * V
        for group in groups:
            if length == 1 or not group.is_over(length):
                is_diverse = steps is None or length <= steps
                group.step(log_probs_after, length, times_chosen, strength if is_diverse else 0)
    return [group.finished for group in groups]


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    num_groups=st.integers(2, 3),
    size=st.integers(1, 3),
    strength=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    steps=st.sampled_from([None, 1, 2]),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_groups_choose_as_the_slow_search_does(seed, num_groups, size, strength, steps, alpha):
    model = transformer(seed)
    found = find(model, beam_size=num_groups * size, num_groups=num_groups, length_penalty=alpha,
                 n_best=num_groups * size, diversity_strength=strength,
                 diversity_steps=steps)  # fmt: skip
    for best, source in zip(found, SOURCES, strict=True):
        groups = slow_search(model, source, num_groups=num_groups, size=size, strength=strength,
                             steps=steps, alpha=alpha, max_length=len(source) + 4)  # fmt: skip
        expected = {tokens: score for group in groups for tokens, _, score in group}
        assert {h.tokens for h in best} == set(expected)
        assert [h.score for h in best] == sorted((h.score for h in best), reverse=True)
        for hypothesis in best:
            assert hypothesis.score == pytest.approx(expected[hypothesis.tokens], abs=1e-4)


def test_groups_may_differ_only_in_the_first_token_after_a_prefix():
    """As other ways to continue a translation need it."""
    prefixes = [[4, 5], [6], [], [7, 7, 7]]
    diverse = {"num_groups": 3, "diversity_strength": 1000.0, "diversity_steps": 1}
    found = find(transformer(1), beam_size=3, n_best=3, min_length=4, prefixes=prefixes, **diverse)
    plain = find(transformer(1), beam_size=1, min_length=4, prefixes=prefixes)
    for best, [first], prefix in zip(found, plain, prefixes, strict=True):
        assert all(list(each.tokens[: len(prefix)]) == prefix for each in best)
        assert len({each.tokens[len(prefix)] for each in best}) == 3
        assert first.tokens in {each.tokens for each in best}  # the first group is free
