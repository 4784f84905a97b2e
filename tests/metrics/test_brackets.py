"""Labeled bracket F1, with cases computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.metrics.brackets import _Sentence, score_brackets
from tfm.text.trees import bracketed, linearize, parse_tree_line, restore, words_of

# Its scored brackets: S 0-4, NP 0-2, VP 2-4 and ADVP 3-4. PRN has only punctuation.
GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ runs) (ADVP (RB home))) (PRN (: --)) (. .))"


def tree(text):
    return parse_tree_line(text, where="the test")


def counts(gold, hypothesis):
    return score_brackets([tree(gold)], [tree(hypothesis)])[0]


def test_a_tree_scores_one_against_itself():
    found = counts(GOLD, GOLD)
    assert (found.matched, found.gold, found.test) == (4, 4, 4)
    assert found.precision == found.recall == found.f1 == found.complete_match == 100
    assert found.tagging_accuracy == 100
    assert found.average_crossing == 0


def test_precision_and_recall_differ_and_f1_is_their_harmonic_mean():
    # S and NP match. VP and ADVP of the gold tree are missing, and X is not in it.
    found = counts(GOLD, "(S (NP (DT the) (NN dog)) (X (VBZ runs)) (RB home) (PRN (: --)) (. .))")
    assert (found.matched, found.gold, found.test) == (2, 4, 3)
    assert found.precision == pytest.approx(200 / 3)
    assert found.recall == 50
    assert found.f1 == pytest.approx(2 * (200 / 3) * 50 / (200 / 3 + 50))
    assert found.complete_match == 0


PUNCTUATION, SIGNS = "(, ,) (: ;) (`` ``) ('' '') (. ?)", "(-LRB- -LRB-) ($ $) (# #)"
MATCHES = {
    "punctuation is ignored, other symbols count": (
        f"(S (NP (NN a)) (X {PUNCTUATION}) (Y {SIGNS}))",
        f"(S (NP (NN a) {PUNCTUATION}) (Y {SIGNS}))",
        (3, 3, 3),
    ),
    "traces are ignored": (
        "(S (NP (NN a)) (VP (VBD b) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))",
        "(S (NP (NN a)) (VP (VBD b)))",
        (3, 3, 3),
    ),
    "TOP does not count": (f"(TOP {GOLD})", f"({GOLD})", (4, 4, 4)),
    "TOP of the hypothesis": (f"( {GOLD})", f"(TOP {GOLD})", (4, 4, 4)),
    "function tags do not count": (
        "(S (NP-SBJ-1 (NN a)) (VP=2 (VB b)))",
        "(S-TPC (NP (NN a)) (VP (VB b)))",
        (3, 3, 3),
    ),
    "PRT is ADVP": ("(VP (VB b) (PRT (RP up)))", "(VP (VB b) (ADVP (RP up)))", (2, 2, 2)),
    "ADVP is PRT": ("(VP (VB b) (ADVP (RP up)))", "(VP (VB b) (PRT (RP up)))", (2, 2, 2)),
    "PRT is not PP": ("(VP (VB b) (PRT (RP up)))", "(VP (VB b) (PP (RP up)))", (1, 2, 2)),
    # Equal brackets over one span are matched by their number.
    "two and one": ("(NP (NP (NN a)))", "(NP (NN a))", (1, 2, 1)),
    "one and three": ("(NP (NN a))", "(NP (NP (NP (NN a))))", (1, 1, 3)),
    "two and two": ("(NP (NP (NN a)))", "(NP (NP (NN a)))", (2, 2, 2)),
    "in another order": ("(NP (X (NP (NN a))))", "(X (NP (NP (NN a))))", (3, 3, 3)),
}


@pytest.mark.parametrize(("gold", "hypothesis", "expected"), MATCHES.values(), ids=MATCHES)
def test_matched_brackets_and_those_of_each_tree_are_counted(gold, hypothesis, expected):
    found = counts(gold, hypothesis)
    assert (found.errors, found.skipped) == (0, 0)
    assert (found.matched, found.gold, found.test) == expected


def test_punctuation_is_no_word():
    assert counts(f"(S {PUNCTUATION} {SIGNS})", f"(S {PUNCTUATION} {SIGNS})").words == 3


@pytest.mark.parametrize(
    ("hypothesis", "errors", "skipped"),
    [
        ("(S (NP (NN dog)) (VP (VBZ runs) (ADVP (RB home))))", 1, 0),
        ("(S (NP (DT the) (NN cat)) (VP (VBZ runs) (ADVP (RB home))))", 1, 0),
        # A word tagged as punctuation is ignored, so that the sentence is too short.
        ("(S (NP (DT the) (NN dog)) (VP (VBZ runs) (ADVP (. home))))", 1, 0),
        ("", 0, 1),
        ("(())", 0, 1),
        ("(S (. .))", 0, 1),
    ],
)
def test_sentences_without_a_parse_or_with_other_words_are_counted_and_skipped(
    hypothesis, errors, skipped
):
    wrong = "(S (NP (NN a) (NN b)))"
    trees = [tree(hypothesis), tree("(S (NN a) (NN b))")]
    found, _ = score_brackets([tree(GOLD), tree(wrong)], trees)
    assert (found.sentences, found.errors, found.skipped, found.valid) == (2, errors, skipped, 1)
    assert (found.matched, found.gold, found.test) == (1, 2, 1)
    assert f"sentences:2|errors:{errors}|skipped:{skipped}" in found.signature


def test_words_without_part_of_speech_get_that_of_the_gold_tree():
    gold = tree(GOLD)
    restored, _ = restore(linearize(gold), words_of(gold))
    assert "(XX .)" in bracketed(restored)
    found, _ = score_brackets([gold], [restored])
    assert (found.matched, found.gold, found.test) == (4, 4, 4)
    assert found.tagging_accuracy is None
    assert "tags:gold" in found.signature
    assert "tags:own" in score_brackets([gold], [gold])[0].signature


def test_parts_of_speech_are_scored_without_punctuation():
    found = counts(
        "(S (NN a) (VB b) (PRT c) (, ,) (. .))", "(S (NN a) (NN b) (ADVP c) (, ,) (: .))"
    )
    assert (found.words, found.correct_tags) == (3, 2)
    assert found.tagging_accuracy == pytest.approx(200 / 3)


def test_a_bracket_that_crosses_several_is_counted_once():
    gold = "(S (A (X a) (X b)) (B (X c) (X d)) (C (X e) (X f)))"
    # b-c crosses A and B, d-e crosses B and C, and both D cross the brackets they overlap.
    found = counts(gold, "(S (X a) (D (D (X b) (X c)) (D (X d) (X e))) (X f))")
    assert found.crossing == 3
    assert found.average_crossing == 3


def test_sentences_of_more_than_forty_words_are_not_short():
    def flat(number, mark):
        return tree(f"(S (NP (NN a)) {'(NN b) ' * (number - 2)} {mark})")

    trees = [flat(40, "(. .)"), flat(40, "(NN c)"), flat(41, "(NN c)"), flat(41, "(. .)")]
    every, short = score_brackets(trees, trees)
    assert (every.sentences, short.sentences) == (4, 2)
    assert (every.gold, short.gold) == (8, 4)


@st.composite
def bracketings(draw, num_words):
    """Draw a random tree of `num_words` words."""

    def build(start, end):
        if end - start == 1:
            return f"(T w{start})"
        cut = draw(st.integers(start + 1, end - 1))
        return f"(X {build(start, cut)} {build(cut, end)})"

    return f"(S {build(0, num_words)})"


def spans(text):
    return {(first, last) for _, first, last in _Sentence(tree(text)).brackets}


@given(num_words=st.integers(2, 12), data=st.data())
def test_brackets_cross_if_neither_contains_the_other(num_words, data):
    gold, test = (data.draw(bracketings(num_words)) for _ in range(2))
    crossing = sum(
        any(a < first < b < last or first < a < last < b for a, b in spans(gold))
        for _, first, last in _Sentence(tree(test)).brackets.elements()
    )
    assert counts(gold, test).crossing == crossing
