"""Constituency trees: reading, normalizing, linearizing and restoring."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.errors import DataError
from tfm.text.trees import (
    Leaf,
    Tree,
    bracketed,
    linearize,
    normalize,
    parse_tree_line,
    read_trees,
    restore,
    walk,
    words_of,
)

LABELS = st.sampled_from(["S", "NP", "VP", "PP", "SBAR", "TOP", "ADVP", "X"])
WORDS = st.sampled_from(["dog", "the", ",", "(", "]", "a{b", "XX", "1/2", "-"])
LEAVES = st.builds(Leaf, st.just("XX"), WORDS)
TREES = st.builds(
    lambda label, children: Tree(label, tuple(children)),
    LABELS,
    st.lists(
        st.recursive(
            LEAVES,
            lambda nodes: st.builds(
                lambda label, children: Tree(label, tuple(children)),
                LABELS,
                st.lists(nodes, min_size=1, max_size=4),
            ),
            max_leaves=15,
        ),
        min_size=1,
        max_size=4,
    ),
)
SYMBOLS = st.lists(
    st.sampled_from(
        ["(S", "(NP", "(VP", ")S", ")NP", ")VP", ")PP", "XX", "XX", "XX", "⁇", "(", ")(", "NP"]
    ),
    max_size=40,
)


def tree(text):
    return parse_tree_line(text, where="the test")


def untagged(node):
    if isinstance(node, Leaf):
        return Leaf("XX", node.word)
    return Tree(node.label, tuple(map(untagged, node.children)))


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "wsj_0001.mrg"
        path.write_text(text, encoding="utf-8")
        return list(read_trees(path))

    return read_text


def test_trees_in_a_file_may_span_lines(read):
    first, second = read(
        """
( (S
    (NP-SBJ (NNP Anna) )
    (VP (VBZ sleeps) )
    (. .) ))
(TOP (FRAG (NN Rain)))
"""
    )
    assert bracketed(first) == "(TOP (S (NP-SBJ (NNP Anna)) (VP (VBZ sleeps)) (. .)))"
    assert bracketed(second) == "(TOP (FRAG (NN Rain)))"


def test_brackets_in_words_are_escaped_only_in_files(read):
    [found] = read("(NP (NN f-LRB-x-RRB-) (-LRB- -LRB-) (CD 42) (-RRB- -RRB-) (SYM -LSB-))")
    assert words_of(found) == ["f(x)", "(", "42", ")", "["]
    assert found.children[1] == Leaf("-LRB-", "(")
    assert (
        bracketed(found) == "(NP (NN f-LRB-x-RRB-) (-LRB- -LRB-) (CD 42) (-RRB- -RRB-) (SYM -LSB-))"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NP (NN a))\n\n(VP (VB b))\n", r"starts at .*mrg, line 1 has 1 unclosed brackets"),
        ("\n(S (NN a)))", r"mrg, line 2 has a closing bracket outside any tree"),
        ("(S (NN a))\nnonsense (S (NN b))", r"mrg, line 2 has 'nonsense' outside any tree"),
        ("(S\n(NN a b))", r"mrg, line 2 has a bracket that is neither"),
        ("(S ())", r"mrg, line 1 has a bracket that is neither"),
        ("(S ((NN a)))", r"mrg, line 1 has a bracket that is neither"),
        ("(S (NP (NN dog) the))", r"mrg, line 1 has a bracket that is neither"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_file_and_line(read, text, message):
    with pytest.raises(DataError, match=message):
        read(text)


def test_a_line_may_have_no_tree_or_several():
    assert [tree(line) for line in ("", "  ", "()", "( ())")] == 4 * [None]
    assert bracketed(tree("(S (NN a)) (S (NN b))")) == "(TOP (S (NN a)) (S (NN b)))"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "( (S (NP-SBJ-1 (NNP Anna)) (VP=2 (VBZ sleeps))))",
            "(S (NP (NNP Anna)) (VP (VBZ sleeps)))",
        ),
        ("(TOP (ROOT (S1 (NP (NN rain)))))", "(NP (NN rain))"),
        ("(ROOT (S (NN a)) (S (NN b)))", "(TOP (S (NN a)) (S (NN b)))"),
        ("(NN rain)", "(TOP (NN rain))"),
        ("(S (NP (PRP$ my) (-LRB- -LRB-)))", "(S (NP (PRP$ my) (-LRB- -LRB-)))"),
        (
            "(S (VP (VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))) (. .))",
            "(S (VP (VBD said)) (. .))",
        ),
        ("(NP (NP (NN rain)) (SBAR (-NONE- 0)))", "(NP (NP (NN rain)))"),
    ],
)
def test_normalizing_removes_function_tags_traces_and_wrappers(raw, expected):
    assert bracketed(normalize(tree(raw))) == expected
    assert normalize(tree("( (S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None


@given(TREES)
def test_normalizing_is_idempotent(found):
    once = normalize(found)
    assert normalize(once) == once
    assert words_of(once) == words_of(found)


@given(TREES)
def test_bracketed_trees_are_read_as_written(found):
    assert tree(bracketed(found)) == found


def test_symbols_are_those_of_vinyals_et_al():
    found = tree("(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))")
    assert " ".join(linearize(found)) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"


@given(TREES)
def test_a_tree_is_restored_from_its_symbols_and_words(found):
    restored, repairs = restore(linearize(found), words_of(found))
    assert restored == untagged(found)
    assert not repairs


@given(SYMBOLS, st.lists(WORDS, min_size=1, max_size=12))
def test_any_symbols_are_restored_to_a_tree_of_exactly_the_words(symbols, words):
    restored, repairs = restore(symbols, words)
    assert words_of(restored) == words
    assert all(node.children for node, _ in walk(restored) if isinstance(node, Tree))
    assert tree(bracketed(restored)) == restored
    assert (not repairs) == (linearize(restored) == symbols)


@pytest.mark.parametrize(
    ("symbols", "expected", "repairs"),
    [
        ("(S (NP XX (VP XX XX )S", "(S (NP a (VP b c)))", 2),
        ("(S (NP XX )NP )NP XX XX )S", "(S (NP a) b c)", 1),
        ("(S (NP XX )PP XX XX )S", "(S (NP a) b c)", 1),
        ("(S (NP XX XX )NP )S", "(S (NP a b) c)", 1),
        ("(S XX XX (NP XX XX )NP XX )S", "(S a b (NP c))", 2),
        ("(S XX (NP )NP XX XX )S", "(S a b c)", 1),
        ("(S XX )S XX (NP XX )NP", "(S a b (NP c))", 2),
        ("XX (S XX XX )S", "(TOP a (S b c))", 2),
        ("(S XX ⁇ XX NN XX ( )S", "(S a b c)", 3),
        ("", "(TOP a b c)", 3),
        ("(S (S XX (NP XX )S XX )S", "(S (S a (NP b)) c)", 1),
    ],
)
def test_each_repair_is_done_and_counted(symbols, expected, repairs):
    restored, num_repairs = restore(symbols.split(), ["a", "b", "c"])
    assert re.sub(r"\(XX (\w)\)", r"\1", bracketed(restored)) == expected
    assert num_repairs == repairs
