"""A treebank that the package writes itself: sentences with their trees, by split."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

from tfm.data.synthetic.corpus import Split, split_of
from tfm.data.synthetic.grammar import Category, Constituent, Part, Rule, grammar
from tfm.data.synthetic.lexicon import lexicon
from tfm.data.trees.tree import TOP, TRACE, Leaf, Node, Tree, walk

_ROOT = Category(name="root/any", label="")
_MIN_WORDS, _MAX_WORDS = 3, 40
_VOWELS = tuple("aeiou")


def generate_trees(split: Split, *, num_trees: int, seed: int) -> Iterator[Tree]:
    """Write trees as treebanks have them, with function tags, traces and a root without name.

    A sentence belongs to one split for ever, whatever the seed, so splits of any size have none in
    common. Within a split no sentence comes twice.

    Args:
        split: Which split to write.
        num_trees: The number of trees; fewer are a prefix of more.
        seed: Decides which sentences.
    """
    writer = _Writer(Random(seed))  # noqa: S311 - a treebank is no secret
    seen: set[str] = set()
    while len(seen) < num_trees:
        tree = writer.sentence()
        words = [leaf.word for leaf in _leaves(tree) if leaf.tag != TRACE]
        sentence = " ".join(words)
        is_wanted = _MIN_WORDS <= len(words) <= _MAX_WORDS and split_of(sentence) == split
        if is_wanted and sentence not in seen:
            seen.add(sentence)
            yield tree


class _Writer:
    """Writes sentences by the grammar, each choice at random."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._words = lexicon()
        self._rules = grammar()
        self._weights = {
            name: list(accumulate(rule.weight for rule in rules))
            for name, rules in self._rules.items()
        }
        self._num_indices = 0

    def sentence(self) -> Tree:
        """A sentence with its tree."""
        self._num_indices = 0
        tree = Tree(TOP, tuple(self._nodes(_ROOT, 0)))
        words = iter(_spelled(_leaves(tree)))
        return Tree(TOP, tuple(_with_words(child, words) for child in tree.children))

    def _nodes(self, part: Part, index: int) -> list[Node]:
        """What a part of a rule becomes; `index` ties its traces to what they stand for."""
        if isinstance(part, Leaf):
            return [Leaf(part.tag, part.word.replace("#", str(index)))]
        if isinstance(part, Constituent):
            label = part.label.replace("#", str(index))
            return [Tree(label, self._children(part.parts, index))]
        if part.name in self._words:
            return [Leaf(part.label, self._random.choice(self._words[part.name]))]
        rule = self._rule(part.name)
        if rule.ties_traces:
            self._num_indices += 1
            index = self._num_indices
        children = self._children(rule.parts, index)
        return [Tree(part.label, children)] if part.label else list(children)

    def _children(self, parts: Sequence[Part], index: int) -> tuple[Node, ...]:
        return tuple(node for part in parts for node in self._nodes(part, index))

    def _rule(self, name: str) -> Rule:
        [rule] = self._random.choices(self._rules[name], cum_weights=self._weights[name])
        return rule


def _spelled(leaves: Sequence[Leaf]) -> list[str]:
    """The words as they are spelled: "an" before a vowel, and a capital at the beginning."""
    words = [leaf.word for leaf in leaves]
    spoken = [place for place, leaf in enumerate(leaves) if leaf.tag != TRACE]
    for place, following in pairwise(spoken):
        if words[place] == "a" and words[following].lower().startswith(_VOWELS):
            words[place] = "an"
    first = next(place for place in spoken if words[place][0].isalnum())
    words[first] = words[first][0].upper() + words[first][1:]
    return words


def _with_words(node: Node, words: Iterator[str]) -> Node:
    """The same tree with other words, from left to right."""
    if isinstance(node, Leaf):
        return Leaf(node.tag, next(words))
    return Tree(node.label, tuple(_with_words(child, words) for child in node.children))


def _leaves(tree: Tree) -> list[Leaf]:
    return [node for node, _ in walk(tree) if isinstance(node, Leaf)]
