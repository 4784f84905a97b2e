"""Generate a treebank in disjoint splits."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

from tfm.data.synthetic.corpus import Split, split_of
from tfm.data.synthetic.grammar import Category, Constituent, Symbol, grammar
from tfm.data.synthetic.lexicon import lexicon
from tfm.data.trees.tree import TOP, TRACE, Leaf, Node, Tree, walk

_ROOT = Category(name="root/any", label="")
_MIN_WORDS, _MAX_WORDS = 3, 40
_VOWELS = tuple("aeiou")


def generate_trees(split: Split, *, num_trees: int, seed: int) -> Iterator[Tree]:
    """Generate trees of distinct sentences, with function tags, traces and TOP as in a treebank.

    A hash of the sentence determines its split, so that splits of any size and seed are disjoint. A
    smaller number of trees gives a prefix of a larger one.
    """
    generator = _Generator(Random(seed))  # noqa: S311 - a treebank is no secret
    seen: set[str] = set()
    while len(seen) < num_trees:
        tree = generator.sentence()
        words = [leaf.word for leaf in _leaves(tree) if leaf.tag != TRACE]
        sentence = " ".join(words)
        is_usable = _MIN_WORDS <= len(words) <= _MAX_WORDS and split_of(sentence) == split
        if is_usable and sentence not in seen:
            seen.add(sentence)
            yield tree


class _Generator:
    """Generates sentences by random choices from the grammar."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._words = lexicon()
        self._rules = grammar()
        self._cumulative_weights = {
            name: list(accumulate(rule.weight for rule in rules))
            for name, rules in self._rules.items()
        }
        self._num_indices = 0

    def sentence(self) -> Tree:
        self._num_indices = 0
        tree = Tree(TOP, tuple(self._expand([_ROOT], 0)))
        words = iter(_spell(_leaves(tree)))
        return Tree(TOP, tuple(_replace_words(child, words) for child in tree.children))

    def _expand(self, symbols: Sequence[Symbol], index: int) -> Iterator[Node]:
        """Expand symbols; `index` is the number that ties traces to their antecedents."""
        for symbol in symbols:
            if isinstance(symbol, Leaf):
                yield Leaf(symbol.tag, symbol.word.replace("#", str(index)))
            elif isinstance(symbol, Constituent):
                label = symbol.label.replace("#", str(index))
                yield Tree(label, tuple(self._expand(symbol.symbols, index)))
            elif symbol.name in self._words:
                yield Leaf(symbol.label, self._random.choice(self._words[symbol.name]))
            else:
                yield from self._apply_rule(symbol, index)

    def _apply_rule(self, category: Category, index: int) -> Iterator[Node]:
        weights = self._cumulative_weights[category.name]
        [rule] = self._random.choices(self._rules[category.name], cum_weights=weights)
        if rule.ties_traces:
            self._num_indices += 1
            index = self._num_indices
        nodes = self._expand(rule.symbols, index)
        if category.label:
            yield Tree(category.label, tuple(nodes))
        else:
            yield from nodes


def _spell(leaves: Sequence[Leaf]) -> list[str]:
    """Return the words with "an" before vowels, and the first word capitalized."""
    words = [leaf.word for leaf in leaves]
    indices = [index for index, leaf in enumerate(leaves) if leaf.tag != TRACE]
    for index, following in pairwise(indices):
        if words[index] == "a" and words[following].lower().startswith(_VOWELS):
            words[index] = "an"
    first = next(index for index in indices if words[index][0].isalnum())
    words[first] = words[first][0].upper() + words[first][1:]
    return words


def _replace_words(node: Node, words: Iterator[str]) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.tag, next(words))
    return Tree(node.label, tuple(_replace_words(child, words) for child in node.children))


def _leaves(tree: Tree) -> list[Leaf]:
    return [node for node, _ in walk(tree) if isinstance(node, Leaf)]
