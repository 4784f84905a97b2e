"""Step-by-step decoding with the KV cache, compared with teacher forcing of whole prefixes."""

import copy

import pytest
import small_models
import torch
from small_models import EVERY_TRANSFORMER, TRANSFORMERS, moved

from tfm.backends.inference_cpu import CpuInference
from tfm.backends.products_cpu import prepack_plain
from tfm.backends.single_sentence import SingleSentenceCache
from tfm.model import cache

V = 13
# Hypotheses per sentence after each step; more than eight do not share a cache.
BEAMS = {
    "greedy": [1] * 9,
    "beam": [4] * 9,
    "wide": [8] * 14,  # exceeds the first capacity
    "changing": [1, 3, 3, 2, 5, 16, 7, 1, 4, 9, 8],
    "shared and separate": [4, 4, 12, 4, 1, 2, 2, 20, 20, 1],
}
EVERY_BEAM = pytest.mark.parametrize("beam", BEAMS.values(), ids=BEAMS)
# Every beam of one model, and the two hardest beams of every model.
EVERY_MODEL_AND_BEAM = pytest.mark.parametrize(
    ("changes", "beam"),
    [
        pytest.param(changes, beam, id=f"{model}, {name}")
        for model, changes in TRANSFORMERS.items()
        for name, beam in BEAMS.items()
        if model == "post-norm" or name in ("wide", "changing")
    ],
)


class RoundingInference(CpuInference):
    """Rounds the number of rows up to a multiple of three."""

    def __init__(self, prepack=prepack_plain):
        super().__init__(prepack, torch.float64)

    def round_up_rows(self, num_rows):
        return -(-num_rows // 3) * 3


def transformer(seed=0, **changes):
    return moved(small_models.transformer(V, seed, num_decoder_layers=2, **changes).double())


class Decoding:
    """Hypotheses with their whole prefixes, decoded step by step by a model."""

    def __init__(self, model, lengths):
        self.model = model
        self.lengths = torch.tensor(lengths)
        self.source = torch.randint(4, V, (len(lengths), max(lengths)))
        self.tokens = torch.randint(4, V, (len(lengths), 1, 1))  # [B, K, t]
        self.state = model.start(self.source, self.lengths)

    def copy(self):
        other = copy.copy(self)
        other.state = copy.deepcopy(self.state)
        return other

    def teacher_forced(self):
        """Return the logits [B · K, V] after each prefix."""
        size = self.tokens.size(1)
        hidden_states = self.model(
            self.source.repeat_interleave(size, dim=0),
            self.lengths.repeat_interleave(size),
            self.tokens.flatten(0, 1),
        )
        return self.model.logits(hidden_states[:, -1])[:, :V]  # a backend pads the vocabulary

    def step(self, rows=None):
        """Compare the next logits of all hypotheses, or of some rows."""
        newest = self.tokens[:, :, -1]
        if rows is None:
            found = self.model.step(newest, self.state)
        else:
            found = self.model.step_rows(newest, self.state, rows)(slice(None))
        expected = self.teacher_forced()
        expected = expected.view(*self.tokens.shape[:2], V) if rows is None else expected[rows]
        torch.testing.assert_close(found[..., :V], expected, rtol=1e-9, atol=1e-9)

    def step_positions(self, num):
        """Extend the only hypothesis of each sentence by tokens at once, and compare all logits."""
        newest = torch.randint(4, V, (len(self.tokens), 1, num))
        self.tokens = torch.cat([self.tokens, newest], dim=2)
        given = self.tokens[:, 0, :-1]
        found = self.model.step(given[:, -num:], self.state)[..., :V]
        expected = self.model.logits(self.model(self.source, self.lengths, given)[:, -num:])
        torch.testing.assert_close(found, expected[..., :V], rtol=1e-9, atol=1e-9)

    def random_rows(self, fraction):
        """Select about this fraction of the hypotheses, at least one per sentence."""
        num_sentences, size, _ = self.tokens.shape
        is_selected = torch.rand(num_sentences, size) < fraction
        is_selected[torch.arange(num_sentences), torch.randint(size, (num_sentences,))] = True
        return is_selected.flatten().nonzero()[:, 0], is_selected

    def extend(self, num_hypotheses, *, parents=None, sentences=None):
        """Extend random hypotheses, or some parents, of all or some sentences by random tokens."""
        num_sentences, size, _ = self.tokens.shape
        if sentences is None:
            sentences = torch.arange(num_sentences)
        if parents is None:
            parents = torch.randint(size, (num_sentences, num_hypotheses))
        rows = (torch.arange(num_sentences)[:, None] * size + parents)[sentences]
        newest = torch.randint(4, V, (*rows.shape, 1))
        self.tokens = torch.cat([self.tokens.flatten(0, 1)[rows], newest], dim=2)
        self.source, self.lengths = self.source[sentences], self.lengths[sentences]
        self.state.reorder(rows)


def some_sentences(num_sentences):
    """Select two thirds of the sentences, in order."""
    return torch.randperm(num_sentences)[: -(-num_sentences * 2 // 3)].sort().values


# Which model decodes, which hypotheses are continued, and when columns are dropped.
WAYS = ["all", "some", "some, rounded", "all, dropping always", "single", "single, some"]


@torch.inference_mode()
@pytest.mark.parametrize("way", WAYS)
@EVERY_MODEL_AND_BEAM
def test_cached_logits_equal_those_of_whole_prefixes(changes, beam, way, monkeypatch):
    """Of a batch or a single sentence, of all hypotheses or of those that are continued."""
    if "always" in way:
        monkeypatch.setattr(cache, "_DROP_INTERVAL", 1)
        monkeypatch.setattr(cache, "_DROP_THRESHOLD", 1.0)
    model = transformer(**changes)
    if "rounded" in way or "single" in way:
        model = RoundingInference().optimized(model)
    decoding = Decoding(model, [5] if "single" in way else [5, 2, 6, 1])
    for step, size in enumerate(beam):
        rows, parents, sentences = None, None, None
        if "some" in way:
            rows, is_selected = decoding.random_rows([0.3, 0.9][step % 2])
            parents = torch.multinomial(is_selected.double(), size, replacement=True)
        if "always" in way and step == 2:
            sentences = some_sentences(len(decoding.tokens))
        decoding.step(rows)
        decoding.extend(size, parents=parents, sentences=sentences)
    decoding.step()
    is_supported = "single" in way and not {"attention", "attention_window"} & changes.keys()
    assert isinstance(decoding.state, SingleSentenceCache) == is_supported


@torch.inference_mode()
@pytest.mark.parametrize("way", ["plain", "rounded", "single"])
@EVERY_TRANSFORMER
def test_positions_that_are_decoded_at_once_have_the_logits_of_whole_prefixes(changes, way):
    """At the beginning and after a beam has shrunk to one hypothesis, of fewer sentences."""
    model = transformer(**changes)
    decoding = Decoding(
        model if way == "plain" else RoundingInference().optimized(model),
        [5] if way == "single" else [5, 2, 6, 1],
    )
    num_first, num_last = (4, 3) if "learned_positions" in changes else (66, 70)
    for size, num in ((1, num_first), (3, 2), (10, num_last), (2, 1)):
        decoding.step()
        decoding.extend(size)
        decoding.step()
        decoding.extend(1, sentences=some_sentences(len(decoding.tokens)))
        decoding.step_positions(num)
    decoding.step()


@torch.inference_mode()
@pytest.mark.parametrize("padded", [True, False])
@EVERY_BEAM
def test_sentences_may_be_removed_at_any_step(beam, padded):
    for seed in range(2):
        lengths = [3, 1, 5, 4, 2, 5, 1, 3, 2] if padded else [3] * 9
        decoding = Decoding(transformer(seed, attention_window=[None, 3][seed % 2]), lengths)
        for step, size in enumerate(beam):
            decoding.step()
            removes = step % 3 == seed % 3
            num_sentences = len(decoding.tokens)
            decoding.extend(size, sentences=some_sentences(num_sentences) if removes else None)
        decoding.step()


@torch.inference_mode()
@pytest.mark.parametrize("single", [False, True])
@EVERY_TRANSFORMER
def test_a_deep_copy_continues_independently(changes, single):
    decoding = new_decoding(changes) if single else Decoding(transformer(**changes), [5, 2, 6])
    copies = []
    for size in (1, 4, 4, 12, 3, 3, 1):
        decoding.step()
        copies.append(decoding.copy())
        decoding.extend(size)
        for clone in copies:
            clone.extend(3)
            clone.step()


@torch.inference_mode()
@pytest.mark.parametrize("padded", [True, False])
def test_columns_that_no_hypothesis_sees_are_dropped(padded):
    decoding = Decoding(transformer(), [5, 2, 6] if padded else [4, 4, 4])
    decoding.step()
    for _ in range(30):  # all hypotheses continue one
        decoding.extend(4, parents=torch.randint(decoding.tokens.size(1), (3, 1)).expand(3, 4))
        decoding.step()
    assert decoding.state.offsets[-1] < 31 + 4 * 8  # without: 121


@torch.inference_mode()
def test_a_cache_grows_only_if_dropping_columns_makes_no_room(monkeypatch):
    monkeypatch.setattr(cache, "_DROP_INTERVAL", 1_000)
    decoding = Decoding(transformer(), [4, 4, 4])
    decoding.step()
    for _ in range(30):  # all hypotheses continue one
        decoding.extend(4, parents=torch.randint(decoding.tokens.size(1), (3, 1)).expand(3, 4))
        decoding.step()
    assert decoding.state.past[0][0].size(2) == cache._FIRST_CAPACITY


# --- a single sentence


def new_decoding(changes, *, length=5, seed=0):
    return Decoding(RoundingInference().optimized(transformer(seed, **changes)), [length])


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_full_cache_drops_only_rows_that_no_hypothesis_sees(size):
    """Hypotheses have common parents at first, and later only their own."""
    decoding = new_decoding({"norm": "pre"}, length=3)
    for step in range(90):
        decoding.step()
        shares_parents = step % 10 == 0 and step < 60
        decoding.extend(
            size, parents=None if shares_parents or step == 0 else torch.arange(size)[None]
        )
    num_positions = decoding.tokens.size(2) - 1
    assert decoding.state.num_kept <= num_positions * size


@torch.inference_mode()
def test_spare_rows_are_finite():
    """Backends may read spare rows, for instance for the scale of int8."""
    seen = []

    def prepack(weight, bias):
        product = prepack_plain(weight, bias)
        if bias is None:  # logits of hypotheses only
            return product
        return lambda x, relu: seen.append(x) or product(x, relu)

    model = RoundingInference(prepack).optimized(transformer(norm="pre"))
    decoding = Decoding(model, [3])
    seen.clear()
    for size in (3, 3, 2, 1, 2, 3, *[2] * 80, 1, *[1] * 80):
        model.step(decoding.tokens[:, :, -1], decoding.state)
        decoding.extend(size)
    assert {len(x) for x in seen} == {3}
    assert all(x.isfinite().all() for x in seen)
