"""Generate a treebank in disjoint splits."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from random import Random

from tfm.data.synthetic.corpus import Split, split_of
from tfm.data.synthetic.grammar import grammar
from tfm.data.synthetic.lexicon import lexicon
from tfm.data.trees.brackets import parse_trees, unescaped
from tfm.data.trees.tree import TOP, TRACE, Tree, bare_label

_MIN_WORDS, _MAX_WORDS = 3, 40
_VOWELS = tuple("aeiou")
_CATEGORY = re.compile(r"[^\s()]+/[^\s()]+")
_WORD = re.compile(rf"\((?!{TRACE} )([^\s()]+) ([^\s()]+)\)")


def generate_trees(split: Split, *, num_trees: int, seed: int) -> Iterator[Tree]:
    """Generate trees of distinct sentences, with function tags, traces and TOP as in a treebank.

    A hash of the sentence determines its split, so that splits of any size and seed are disjoint. A
    smaller number of trees gives a prefix of a larger one.
    """
    generator = _Generator(Random(seed))  # noqa: S311 - a treebank is no secret
    seen: set[str] = set()
    while len(seen) < num_trees:
        brackets = generator.sentence()
        words = [word for _, word in _WORD.findall(brackets)]
        sentence = unescaped(" ".join(words))
        is_usable = _MIN_WORDS <= len(words) <= _MAX_WORDS and split_of(sentence) == split
        if is_usable and sentence not in seen:
            seen.add(sentence)
            yield from parse_trees([(brackets, "the grammar")])


class _Generator:
    """Generates sentences, as trees in brackets, by random choices from the grammar."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._words = lexicon()
        self._rules = {}
        for name, rules in grammar().items():
            weights, expansions = zip(*rules, strict=True)
            self._rules[name] = expansions, list(accumulate(weights))
        self._num_indices = 0

    def sentence(self) -> str:
        self._num_indices = 0
        brackets = f"({TOP} {self._expand('root/any', 0)})"
        spelled = iter(_spell([word for _, word in _WORD.findall(brackets)]))
        return _WORD.sub(lambda match: f"({match[1]} {next(spelled)})", brackets)

    def _expand(self, symbols: str, index: int) -> str:
        """Expand all categories; `index` is the number that ties traces to their antecedents."""
        tied = symbols.replace("#", str(index))
        return _CATEGORY.sub(lambda match: self._expand_category(match[0], index), tied)

    def _expand_category(self, category: str, index: int) -> str:
        label, name = _label_and_name(category)
        if name in self._words:
            return f"({label} {self._random.choice(self._words[name])})"
        expansions, weights = self._rules[name]
        [symbols] = self._random.choices(expansions, cum_weights=weights)
        if "-# " in symbols:  # a label to which a trace is tied
            self._num_indices += 1
            index = self._num_indices
        expanded = self._expand(symbols, index)
        return expanded if label.islower() else f"({label} {expanded})"


@cache
def _label_and_name(category: str) -> tuple[str, str]:
    """Return the label of a category in the tree, and its name, which has no function tags."""
    label, _, features = category.partition("/")
    return label, f"{bare_label(label)}/{features}"


def _spell(words: list[str]) -> list[str]:
    """Return the words with "an" before vowels, and the first word capitalized."""
    following = [word.lower() for word in [*words[1:], ""]]
    spelled = [
        "an" if word == "a" and after.startswith(_VOWELS) else word
        for word, after in zip(words, following, strict=True)
    ]
    first = next(index for index, word in enumerate(spelled) if word[0].isalnum())
    spelled[first] = spelled[first][0].upper() + spelled[first][1:]
    return spelled
