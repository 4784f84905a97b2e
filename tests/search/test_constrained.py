"""Beam search for outputs with required phrases, compared with all outputs that have them."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search import workshop
from search.workshop import WORDS, V, force
from small_models import recurrent, transformer

from tfm.search.active import ActiveHypotheses
from tfm.search.constrained import beam_width
from tfm.search.constraints import Constraints
from tfm.search.model import Ensemble
from tfm.search.phrases import Edges, Phrase, RequiredPhrases
from tfm.vocabulary.subword import EOS

SURFACES = [b"", b"", b"", b"<unk>", b" a", b" b", b"c"]
A, B, C = WORDS
EDGES = list(map(Edges.of, SURFACES))
SOURCES = [[4, 5, EOS], [6, EOS], [5, 5, 6, EOS]]
SEQUENCES = [[(A,)], [(A, B)], [(A, C)], [(A,), (A, C)], [(A,), (A,)], [(A, B), (B, A)], [(B, B)]]


def required(*sequences):
    return RequiredPhrases([Phrase((s,), (s,), (s,)) for s in sequences], EDGES)


def words(tokens):
    return b"".join(SURFACES[token] for token in tokens).decode().split()


def count_longest_first(tokens, sequences):
    """Count phrases among the words of an output, where longer ones win, in a slow way."""
    left, phrases = words(tokens), [words(sequence) for sequence in sequences]
    found = 0
    for phrase in sorted(phrases, key=lambda each: -len(each)):
        places = [i for i in range(len(left)) if left[i : i + len(phrase)] == phrase]
        if places:
            left[places[0] : places[0] + len(phrase)] = [None] * len(phrase)
            found += 1
    return found


def contains(tokens, sequences):
    return count_longest_first(tokens, sequences) == len(sequences)


def find(model, phrases, *, sources=SOURCES, prefixes=None, constraints=None, **config):
    options = {"required": [required(*phrases)] * len(sources), "constraints": constraints}
    config = {"beam_size": 4, "n_best": 1, **config}
    return workshop.find("beam", model, sources, prefixes, options=options, **config)


def best_of_all(model, source, phrases, extra):
    """Return the score of the best output that contains phrases, among all outputs."""
    outputs = [
        output
        for length in range(len(source) + extra)
        for output in itertools.product(WORDS, repeat=length)
        if contains(output, phrases)
    ]
    return max(each.score for each in force([model], source, outputs))


@pytest.mark.parametrize("phrases", SEQUENCES, ids=str)
def test_a_wide_beam_finds_the_best_output_with_all_phrases(phrases):
    for seed in range(3):
        model = transformer(V, seed, sharpness=2)
        sources = [[4, EOS], [5, 6, EOS]]
        found = find(model, phrases, sources=sources, beam_size=200)
        for source, [best] in zip(sources, found, strict=True):
            assert contains(best.tokens, phrases)
            expected = best_of_all(model, source, phrases, 3)
            assert best.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("phrases", SEQUENCES, ids=str)
@pytest.mark.parametrize("new", [transformer, recurrent])
def test_small_beams_place_all_phrases(new, phrases, beam_size):
    ensemble = Ensemble([new(V, seed, sharpness=2) for seed in (1, 2)])
    for model in (new(V, sharpness=3), ensemble):
        found = find(model, phrases, beam_size=beam_size, n_best=beam_size, max_extra_length=6)
        for best in found:
            assert best
            assert len({each.tokens for each in best}) == len(best) <= beam_size
            assert all(contains(each.tokens, phrases) for each in best)
            assert [each.score for each in best] == sorted((e.score for e in best), reverse=True)


def test_a_sentence_has_the_same_output_alone_and_in_any_batch():
    model = transformer(V, sharpness=2)
    phrases = [[(A,)], [(A, B), (B,)], [(B, A, C, B, A)]]

    def find_all(order):
        options = {"required": [required(*phrases[i]) for i in order]}
        sources = [SOURCES[i] for i in order]
        found = workshop.find("beam", model, sources, options=options, max_extra_length=6)
        return {i: best[0].tokens for i, best in zip(order, found, strict=True)}

    together = find_all([0, 1, 2])
    assert together == find_all([2, 0, 1])
    assert together == {i: find_all([i])[i] for i in range(3)}


def test_scores_are_those_of_the_model():
    model = transformer(V, sharpness=2)
    for source, [best] in zip(SOURCES, find(model, [(A, B)]), strict=True):
        [scored] = force([model], source, [best.tokens])
        assert best.score == pytest.approx(scored.score, abs=1e-4)


def test_phrases_are_placed_after_a_prefix_or_within_it(monkeypatch):
    """Whether prefixes are followed at once or step by step."""
    model = transformer(V, sharpness=2)
    for prefix in ([B, B], [A, C], [A, B], [A, A, B]):
        prefixes = [prefix, prefix[-2:], [A, *prefix * 6]]
        settings = {"prefixes": prefixes, "sources": [*SOURCES[:2], [5] * 30]}
        found = find(model, [(A, B)], **settings)
        with monkeypatch.context() as patch:
            patch.setattr(ActiveHypotheses, "_follow_prefixes", lambda self: None)
            expected = find(model, [(A, B)], **settings)
        for [best], [other], start in zip(found, expected, prefixes, strict=True):
            assert list(best.tokens[: len(start)]) == start
            assert contains(best.tokens, [(A, B)])
            assert best.tokens == other.tokens


def test_what_cannot_be_placed_is_left_out():
    model = transformer(V, sharpness=2)
    for [best] in find(model, [(A,), (A,), (B,)], constraints=Constraints(1, None)):
        assert contains(best.tokens, [(A,), (B,)])
        assert best.tokens.count(A) == 1
    for source, [best] in zip(SOURCES, find(model, [(B,) * 9, (A,)]), strict=True):
        assert contains(best.tokens, [(A,)])
        assert len(best.tokens) < len(source) + 3


def test_the_beam_is_wider_by_the_tokens_of_phrases_within_limits():
    assert beam_width(1, 3) == beam_width(4, 3) == 7
    assert beam_width(4, 1000) == 8
    assert beam_width(100, 1000) == 100


# --- progress


def progress_of(needed, tokens):
    progress = needed.start()
    for token in tokens:
        progress = needed.advanced(progress, token)
    return progress


@given(
    tokens=st.lists(st.sampled_from(WORDS), max_size=9),
    phrases=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), max_size=3),
)
def test_an_output_with_all_phrases_has_them_as_words(tokens, phrases):
    phrases = [tuple(phrase) for phrase in phrases if phrase[0] != C]
    needed = required(*phrases)
    progress = progress_of(needed, tokens)
    assert progress.num_done <= needed.num_tokens
    if progress.is_complete:
        assert progress.num_done == needed.num_tokens
        assert contains(tokens, phrases)
        assert not needed.following(progress)


@given(
    tokens=st.lists(st.sampled_from(WORDS), max_size=5),
    phrase=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
)
def test_one_phrase_is_found_exactly_where_its_words_are(tokens, phrase):
    phrase = (A, *phrase)
    needed = required(phrase)
    assert progress_of(needed, tokens).is_complete == contains(tokens, [phrase])


def test_following_the_tokens_that_are_missing_completes_all_phrases():
    chance = random.Random(1)
    for phrases in SEQUENCES:
        needed = required(*phrases)
        for _ in range(20):
            progress = progress_of(needed, chance.choices(WORDS, k=4))
            for _ in range(30):
                before, following = progress.num_done, needed.following(progress)
                if not following:
                    break
                progress = max(
                    (needed.advanced(progress, token) for token in sorted(following)),
                    key=lambda each: each.num_done,
                )
                assert progress.num_done >= before - 1
            assert progress.is_complete


def test_a_word_that_goes_on_is_another_word():
    needed = required((A,))
    assert progress_of(needed, [B, A]).is_complete
    assert not progress_of(needed, [B, A, C]).is_complete
    assert progress_of(needed, [A, C, A]).is_complete


def test_states_that_are_forgotten_are_found_again(monkeypatch):
    chance = random.Random(2)
    phrases = [(A, B), (B, A), (A,)]
    outputs = [chance.choices(WORDS, k=12) for _ in range(20)]
    expected = [progress_of(required(*phrases), each).contents for each in outputs]
    monkeypatch.setattr("tfm.search.phrases._MAX_STATES", 3)
    assert [progress_of(required(*phrases), each).contents for each in outputs] == expected
