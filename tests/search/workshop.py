"""What the tests of searches share: models, batches, kinds of search, and a slow reference."""

import itertools
import math
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType

import numpy as np
import pytest
import small_models
import torch
from small_models import batch_of

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.products_cpu import prepack_fp32
from tfm.config import SearchConfig
from tfm.search.constraints import Constraints
from tfm.search.forced import forced_decoding
from tfm.search.model import Ensemble, SearchableModel
from tfm.search.search import search
from tfm.vocabulary.subword import BOS, EOS

WORDS = (4, 5, 6)
V = 7
SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS]]
ALPHAS = [0.0, 0.6, 1.0, 3.0, -0.5, -2.0]
SEARCHES = {
    "beam": {"beam_size": 3, "n_best": 3},
    "greedy": {"beam_size": 1},
    "diverse": {"beam_size": 4, "n_best": 4, "num_groups": 2},
    "sample": {"search": "sample", "n_best": 3},
    "exact": {"search": "exact", "beam_size": 2, "n_best": 2},
}
EVERY_SEARCH = pytest.mark.parametrize("kind", SEARCHES)

transformer = partial(small_models.transformer, V, sharpness=3)
recurrent = partial(small_models.recurrent, V, sharpness=3, num_decoder_layers=2)
# By name, what makes the models to search and score with.
MODELS = {
    "transformer": lambda: [transformer()],
    "window": lambda: [transformer(attention_window=3)],
    "additive": lambda: [transformer(attention="additive", norm="pre")],
    "gru": lambda: [recurrent(cell="gru")],
    "no input feeding": lambda: [recurrent(input_feeding=False)],
    "ensemble": lambda: [transformer(), recurrent(source_attention="local-m", local_window=1)],
    "prepacked": lambda: [CpuInference(prepack_fp32, torch.float32).optimized(transformer())],
}
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)


def joined(models):
    return models[0] if len(models) == 1 else Ensemble(models)


def settings_of(kind, **config):
    settings = SearchConfig(**{"max_extra_length": 3, "min_length": 0, **SEARCHES[kind], **config})
    assert not list(settings.problems())
    return settings


def find(
    kind, model, sources=SOURCES, prefixes=None, lines=None, options=MappingProxyType({}), **config
):
    """Search for the outputs of sources in lines of these numbers, with options of `search`."""
    settings = settings_of(kind, **config)
    size = settings.no_repeat_ngram
    with torch.inference_mode():
        return search(
            model,
            *batch_of(sources),
            settings,
            line_numbers=lines or range(len(sources)),
            prefixes=prefixes,
            **{"constraints": Constraints(size, None) if size else None, **options},
        )


def force(models, source, outputs, **config):
    """Score outputs of a source."""
    with torch.inference_mode():
        return forced_decoding(
            models, *batch_of([source] * len(outputs)), outputs, SearchConfig(**config)
        )


def assert_same(found, expected):
    """Check that hypotheses are equal, up to rounding."""
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    for name in ("log_prob", "score"):
        values = [getattr(each, name) for each in expected]
        assert [getattr(each, name) for each in found] == pytest.approx(values, abs=1e-4)


class Table(SearchableModel):
    """A model whose probabilities are random, but fixed for each source and prefix."""

    def __init__(self, seed=0, *, spread=1.5, max_positions=None):
        self._seed, self._spread, self.max_positions = seed, spread, max_positions
        self.num_rows = 0  # of the hypotheses that were extended
        self.log_probs = cache(self._log_probs)

    def _log_probs(self, source, tokens):
        generator = torch.Generator().manual_seed(hash((self._seed, source, tokens)) % (1 << 62))
        logits = torch.randn(V, generator=generator, dtype=torch.float64) * self._spread
        return logits.float().log_softmax(dim=-1)

    def start(self, source, lengths):
        sources = [row[:n].tolist() for row, n in zip(source, lengths.tolist(), strict=True)]
        return TableState([[(tuple(sentence), ())] for sentence in sources])

    def step_rows(self, tokens, state, rows):
        self.num_rows += len(rows)
        found = []
        for beam, newest in zip(state.beams, tokens.tolist(), strict=True):
            for index, token in enumerate(newest):
                row = index if len(beam) > 1 else 0  # which may be followed by several tokens
                source, prefix = beam[row]
                beam[row] = (source, (*prefix, token))
                found.append(self.log_probs(*beam[row]))
        return torch.stack(found)[rows].__getitem__


class TableState:
    """The sources and prefixes of hypotheses."""

    def __init__(self, beams):
        self.beams = beams

    def reorder(self, rows):
        flat = list(itertools.chain.from_iterable(self.beams))
        self.beams = [[flat[index] for index in row] for row in rows.tolist()]


# --- the reference


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...]
    log_prob: float
    score: float


@dataclass
class Group:
    """The hypotheses of a sentence, or of one group of diverse beam search."""

    size: int
    live: list = field(default_factory=lambda: [((), 0.0)])
    finished: list = field(default_factory=list)


class Reference:
    """A slow search in the table of a model for one source, which keeps lists of hypotheses."""

    def __init__(self, table, source, config, prefix=()):
        self.table, self.source, self.config, self.prefix = table, tuple(source), config, prefix
        limit = min(len(source) + config.max_extra_length, table.max_positions or math.inf)
        self.max_length = max(limit, len(prefix) + 1)

    def following(self, tokens):
        """Return the log probabilities of the tokens that may follow others."""
        size = self.config.no_repeat_ngram or self.max_length
        earlier = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
        if len(tokens) < len(self.prefix):
            allowed = [self.prefix[len(tokens)]]
        elif len(tokens) + 1 == self.max_length:
            allowed = [EOS]
        else:
            allowed = [word for word in WORDS if (*tokens, word)[-size:] not in earlier]
            if len(tokens) >= self.config.min_length or not allowed:
                allowed = [EOS, *allowed]
        log_probs = self.table.log_probs(self.source, (BOS, *tokens)).tolist()
        return {token: log_probs[token] for token in allowed}

    def penalty(self, length):
        return ((5 + length) / 6) ** self.config.length_penalty

    def output(self, tokens, log_prob):
        return Output(tokens[:-1], log_prob, log_prob / self.penalty(len(tokens)))

    def step(self, group, times_chosen, strength):
        """Continue a group by a token; return the number of possible continuations."""
        candidates = [
            ((*tokens, token), total + log_prob)
            for tokens, total in group.live
            for token, log_prob in self.following(tokens).items()
        ]
        candidates.sort(key=lambda each: strength * times_chosen[each[0][-1]] - each[1])
        ended = [each for each in candidates[: group.size] if each[0][-1] == EOS]
        others = [each for each in candidates if each[0][-1] != EOS]
        group.live = [] if ended and group.size == 1 else others[: group.size]
        found = [*group.finished, *itertools.starmap(self.output, ended)]
        group.finished = sorted(found, key=lambda each: -each.score)[: group.size]
        for tokens, _ in [*ended, *group.live]:
            times_chosen[tokens[-1]] += 1
        return len(candidates)

    def is_over(self, group, length):
        """Return whether no hypothesis of a group can enter its best with this length or more."""
        penalty = max(map(self.penalty, (length, self.max_length)))
        bounds = [total / penalty for _, total in group.live]
        is_full = len(group.finished) == group.size
        return not bounds or (is_full and max(bounds) <= group.finished[-1].score)

    def groups(self, num_groups, size):
        """Return the outputs of groups that choose tokens one after another."""
        groups, num_free = [Group(size) for _ in range(num_groups)], 0
        for length in range(1, self.max_length + 1):
            is_diverse = num_free < (self.config.diversity_steps or math.inf)
            strength = self.config.diversity_strength if is_diverse else 0.0
            times_chosen = [0] * V
            counts = [
                self.step(group, times_chosen, strength)
                for group in groups
                if not self.is_over(group, length)
            ]
            num_free += max(counts, default=0) > 1
        return [group.finished for group in groups]

    def distribution(self, log_probs):
        """Return unnormalized probabilities to draw tokens from."""
        config = self.config
        scaled = {token: value / config.temperature for token, value in log_probs.items()}
        threshold = sorted(scaled.values(), reverse=True)[: config.top_k][-1]
        kept = {token: math.exp(x) for token, x in scaled.items() if x >= threshold}
        probs = {token: prob / sum(kept.values()) for token, prob in kept.items()}
        if config.top_p is not None:
            ordered = sorted(probs, key=lambda token: -probs[token])
            before = [sum(probs[token] for token in ordered[:i]) for i in range(len(ordered))]
            nucleus = {t for t, p in zip(ordered, before, strict=True) if p < config.top_p}
            probs = {t: p for t, p in probs.items() if t in {ordered[0], *nucleus}}
        least = min(config.epsilon or 0.0, max(probs.values()))
        return {token: prob for token, prob in probs.items() if prob >= least}

    def sample(self, line, index):
        seeds = [self.config.seed, line, index]
        numbers = np.random.Generator(np.random.PCG64(seeds)).random(self.max_length)
        tokens, log_prob = (), 0.0
        while EOS not in tokens:
            following = self.following(tokens)
            probs = sorted(self.distribution(following).items())
            left = numbers[len(tokens)] * sum(prob for _, prob in probs)
            sums = itertools.accumulate(prob for _, prob in probs)
            token = next(t for (t, _), total in zip(probs, sums, strict=True) if total > left)
            tokens, log_prob = (*tokens, token), log_prob + following[token]
        return self.output(tokens, log_prob)

    def outputs(self, line):
        """Return the best outputs of a source in the line of a number."""
        config = self.config
        if config.search == "sample":
            found = [self.sample(line, index) for index in range(config.n_best)]
        elif config.num_groups == 1:
            size = 1 << 30 if config.search == "exact" else config.beam_size
            [found] = self.groups(1, size)
        else:
            groups = self.groups(config.num_groups, config.beam_size // config.num_groups)
            found = []
            for rank in itertools.zip_longest(*groups):
                new = sorted({*filter(None, rank)} - {*found}, key=lambda each: -each.score)
                found += new[: config.n_best - len(found)]
        return sorted(found, key=lambda each: -each.score)[: config.n_best]
