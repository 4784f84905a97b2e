"""Prefixes that break off within a word."""

import itertools

import numpy as np
import pytest
from search import workshop
from search.workshop import EVERY_SEARCH, force
from small_models import transformer

from tfm.commands.translator import Translator
from tfm.search.constraints import Constraints
from tfm.search.model import Ensemble
from tfm.search.spelling import Spellings, next_step
from tfm.vocabulary.subword import EOS, UNK

SURFACES = [b"", b"", b"", b"<unk>", b" a", b" ab", b"a", b"b", b"bc", b" ", b" abc"]
V = len(SURFACES)
A, AB, PLAIN_A, B, BC, SPACE, ABC = range(4, V)
WORDS = range(4, V)
SOURCES = [[4, 5, EOS], [6, EOS], [EOS], [5, 5, 6, EOS], [4, EOS]]
# The pieces of " ab", nothing, " ab ab", " ab ", and of a word that is unknown.
PREFIXES = [[A, B], [], [AB, A, B], [AB, SPACE], [UNK, B]]
SPELLINGS = Spellings(SURFACES)


def text_of(tokens):
    return b"".join(SURFACES[token] for token in tokens)


def find(kind, model, prefixes=PREFIXES, *, constraints=None, **config):
    fixed, open_ends = SPELLINGS.open(prefixes, model.max_positions)
    options = {"constraints": constraints, "open_ends": open_ends}
    sources = SOURCES[: len(prefixes)]
    return workshop.find(kind, model, sources, fixed, options=options, **config)


def model_of(seed=0, **changes):
    return transformer(V, seed, sharpness=3, **changes)


@EVERY_SEARCH
@pytest.mark.parametrize("size", [1, 2], ids=["model", "ensemble"])
def test_outputs_begin_with_the_text_of_their_prefixes_in_any_pieces(kind, size):
    models = [model_of(seed) for seed in range(size)]
    spelled = set()
    for temperature in (1, 3):
        changes = {"temperature": temperature} if kind == "sample" else {}
        found = find(kind, models[0] if size == 1 else Ensemble(models), **changes)
        for source, prefix, best in zip(SOURCES, PREFIXES, found, strict=True):
            assert best
            for each in best:
                assert text_of(each.tokens).startswith(text_of(prefix))
                [expected] = force(models, source, [each.tokens])
                assert each.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
        spelled |= {each.tokens[:2] for each in found[0]}
    assert all(each.tokens[0] == UNK for each in found[4])
    assert any(each != (A, B) for each in spelled)


@pytest.mark.parametrize("kind", ["beam", "exact"])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_outputs_of_all_spellings_are_found(kind, seed):
    model, prefix = model_of(seed), [A, B]
    [found] = find(kind, model, [prefix], beam_size={"beam": 900, "exact": 2}[kind], n_best=2)
    outputs = [
        words
        for length in range(1, 6)
        for words in itertools.product(WORDS, repeat=length)
        if text_of(words).startswith(text_of(prefix))
    ]
    expected = sorted(force([model], SOURCES[0], outputs), key=lambda each: -each.score)
    assert [each.tokens for each in found] == [each.tokens for each in expected[:2]]


@EVERY_SEARCH
def test_a_space_ends_the_word(kind):
    for each in find(kind, model_of())[3]:
        assert each.tokens[0] == AB
        assert SURFACES[each.tokens[1]].startswith(b" ")


@EVERY_SEARCH
def test_a_prefix_wins_over_constraints_which_hold_for_what_goes_on(kind):
    class Banned(Constraints):
        def ruled_out(self, tokens):
            rows = np.repeat(np.arange(len(tokens)), 2)
            return rows, np.array([B, BC] * len(tokens))

    banned = Banned(None, None)
    banned.never = (AB, ABC)
    [found] = find(kind, model_of(), [[A, B]], constraints=banned, beam_size=4, n_best=1)
    tokens = found[0].tokens
    assert text_of(tokens).startswith(b" ab")
    assert not {BC, ABC} & {*tokens}
    size = next(size for size in range(9) if len(text_of(tokens[:size])) >= len(b" ab"))
    assert not {B, AB} & {*tokens[size:]}


@EVERY_SEARCH
@pytest.mark.parametrize("num_positions", [3, 4, 5, 9])
def test_no_spelling_exceeds_the_positions_of_a_model(kind, num_positions):
    model = model_of(learned_positions=num_positions)
    [found] = find(kind, model, [[A, B]])
    for each in found:
        assert text_of(each.tokens).startswith(b" ab")
        assert len(each.tokens) < num_positions


def test_an_open_end_has_no_step_from_which_its_rest_cannot_be_spelled():
    spellings = Spellings([*SURFACES, b"x", "字".encode(), "字"[:1].encode()[:1]])
    [(fixed, open_end)] = zip(*spellings.open([[PLAIN_A, V + 1]], None), strict=True)
    assert list(fixed) == []
    step = next_step(open_end, [PLAIN_A])
    assert step.tokens.tolist() == [V + 1]  # not the byte, which nothing continues
    assert next_step(open_end, [PLAIN_A, V + 1]) is None


TEXTS = [
    "Zwei Hun",
    "Zwei Hunde",
    "Zwei Hunde ",
    "两只狗在",
    "ابيت",
    "Hi 👩‍👩‍👧",
    "a.b",
    "x\t",
    "é",
]


def test_translations_begin_with_any_prefix(make_model):
    translator = Translator.load(make_model(), device="cpu")
    for beam in (1, 4):
        found = translator.search(["one two"] * len(TEXTS), prefixes=TEXTS, beam_size=beam)
        for text, [best, *_] in zip(TEXTS, found, strict=True):
            assert best.text.startswith(text.replace("\t", " "))
