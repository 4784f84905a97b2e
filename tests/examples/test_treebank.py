"""The example of the generated treebank."""

import itertools
import os
import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import pytest

from tfm.text.trees import TRACE, Leaf, Tree, bare_label, bracketed, normalize, unescaped, words_of

EXAMPLE = "treebank/generate"
TOKEN = re.compile(r"\([^\s()]+ [^\s()/]+\)|[()]|[^\s()]+")


def parse_symbols(text):
    """Parse an expansion into words, constituents of such symbols, and names of categories."""
    open_symbols = [[]]
    for token in TOKEN.findall(text):
        if token == "(":
            open_symbols.append([])
        elif token == ")":
            label, *symbols = open_symbols.pop()
            open_symbols[-1].append(Tree(label, tuple(symbols)))
        elif token.startswith("("):
            tag, word = token[1:-1].split()
            open_symbols[-1].append(Leaf(tag, unescaped(word)))
        else:
            open_symbols[-1].append(token)
    [symbols] = open_symbols
    return tuple(symbols)


def name_of(category):
    label, _, features = category.partition("/")
    return f"{bare_label(label)}/{features}"


class Chart:
    """A chart parser: all normalized trees of a sentence by the grammar."""

    def __init__(self, words, rules):
        self.words, self.rules = words, rules
        self.parses = cache(self.parses)

    def trees(self):
        found = self.parses("root/any", 0)
        return [nodes for end, nodes in found if end == len(self.words)]

    def parses(self, symbol, start):
        """Return {(end, nodes)} of a symbol that starts at a word."""
        if isinstance(symbol, Leaf):
            if symbol.tag == TRACE:
                return {(start, ())}
            return self.word(symbol.tag, (symbol.word,), start)
        if isinstance(symbol, Tree):
            label, found = symbol.label, self.sequences(symbol.children, start)
        else:
            label = symbol.partition("/")[0]
            name = name_of(symbol)
            if name in self.rules.words:
                return self.word(label, self.rules.words[name], start)
            found = set()
            for symbols in self.rules.expansions[name]:
                found |= self.sequences(symbols, start)
            if label.islower():
                return found
        return {(end, (Tree(bare_label(label), nodes),) if nodes else ()) for end, nodes in found}

    def sequences(self, symbols, start):
        found = {(start, ())}
        for symbol in symbols:
            found = {
                (end, nodes + more)
                for middle, nodes in found
                for end, more in self.parses(symbol, middle)
            }
        return found

    def word(self, tag, choices, start):
        if start == len(self.words):
            return set()
        word = self.words[start]
        known = {word, "a"} if word == "an" else {word}
        is_first = not any(other[0].isalnum() for other in self.words[:start])
        if is_first:
            known |= {known_word[0].lower() + known_word[1:] for known_word in known}
            known |= {"a"} if word == "An" else set()
        return {(start + 1, (Leaf(tag, word),))} if known & set(choices) else set()


@pytest.fixture(scope="module")
def treebank(example):
    return {
        split: list(example.generate_trees(split, num_trees=number, seed=1))
        for split, number in (("train", 700), ("valid", 200), ("test", 200))
    }


def sentences(trees):
    return [" ".join(words_of(normalize(tree))) for tree in trees]


def test_each_sentence_has_exactly_one_tree(example, treebank):
    expansions = {
        name: [parse_symbols(text) for _, text in rules]
        for name, rules in example.grammar().items()
    }
    rules = SimpleNamespace(expansions=expansions, words=example.lexicon())
    for tree in treebank["train"][:150]:
        right = normalize(tree)
        found = Chart(tuple(words_of(right)), rules).trees()
        assert [bracketed(root) for [root] in found] == [bracketed(right)]


def test_sentences_are_distinct_and_splits_disjoint_for_any_seeds(example, treebank):
    found = {split: set(sentences(trees)) for split, trees in treebank.items()}
    assert all(len(found[split]) == len(trees) for split, trees in treebank.items())
    found["test"] |= set(sentences(example.generate_trees("test", num_trees=300, seed=9)))
    assert found["train"].isdisjoint(found["valid"] | found["test"])
    assert found["valid"].isdisjoint(found["test"])


def test_trees_depend_only_on_the_seed_and_fewer_are_a_prefix(example, treebank):
    first = list(example.generate_trees("train", num_trees=100, seed=1))
    assert first == treebank["train"][:100]
    assert list(example.generate_trees("train", num_trees=100, seed=2)) != first


def test_the_script_writes_the_same_trees_in_any_process(example, treebank, tmp_path):
    sizes = {split: len(trees) // 10 for split, trees in treebank.items()}
    subprocess.run(
        [sys.executable, example.__file__, tmp_path, "--sizes", *map(str, sizes.values())],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
    )
    for split, trees in treebank.items():
        lines = (tmp_path / f"{split}.mrg").read_text(encoding="utf-8").splitlines()
        assert lines == [bracketed(tree) for tree in trees[: sizes[split]]]


def test_sentences_have_capitals_full_stops_and_correct_articles(treebank):
    for sentence in sentences(treebank["train"]):
        words = sentence.split()
        assert words[words[0] == "``"][0].isupper()
        assert words[-1] in (".", "!", "?")
        for word, following in itertools.pairwise(words):
            if word.lower() in ("a", "an"):
                assert (word.lower() == "an") == (following[0].lower() in "aeiou")


def test_each_trace_has_an_antecedent(treebank):
    for tree in treebank["train"]:
        numbers = re.findall(r"\*T\*-(\d)", bracketed(tree))
        tied = re.findall(r"\((?:WHNP|S-TPC)-(\d) ", bracketed(tree))
        assert sorted(numbers) == sorted(tied) == sorted(set(tied))
