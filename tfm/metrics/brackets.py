"""Labeled bracket F1, as EVALB (Sekine and Collins 1997) computes it with COLLINS.prm.

- Punctuation (tags , : `` '' .) and traces are deleted before spans are numbered; constituents
  without other words are ignored.
- TOP is ignored. Labels end before "-" or "="; PRT equals ADVP.
- A constituent is correct if the other tree has one with the same label and span; each constituent
  matches at most once.
- A sentence whose words differ from the gold tree's is an error, one without a parse is skipped.
  Both are excluded from all other counts, so the signature reports their numbers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from tfm.data.trees.tree import TOP, TRACE, UNTAGGED, Leaf, Tree, bare_label, walk

CUTOFF_LENGTH = 40

_DELETED_TAGS = frozenset((TOP, TRACE, ",", ":", "``", "''", "."))
_EQUIVALENT = {"PRT": "ADVP"}

# Label, start and end (exclusive) of a constituent, in words that are not deleted.
Bracket = tuple[str, int, int]


@dataclass(kw_only=True)
class BracketCounts:
    """EVALB's counts over some sentences, and the metrics that follow from them."""

    sentences: int = 0  # including errors and skipped
    errors: int = 0  # sentences whose words differ from those of the gold tree
    skipped: int = 0  # sentences without a parse
    gold: int = 0  # brackets of the gold trees
    test: int = 0  # brackets of the scored trees
    matched: int = 0  # brackets in both
    complete: int = 0  # sentences in which all brackets match
    crossing: int = 0  # brackets of the scored trees that cross a gold bracket
    words: int = 0  # without deleted ones
    correct_tags: int = 0  # words with the part of speech of the gold tree
    untagged: int = 0  # words to which the parser gave no part of speech

    @property
    def valid(self) -> int:
        """The number of scored sentences."""
        return self.sentences - self.errors - self.skipped

    @property
    def precision(self) -> float:
        """Percentage of the brackets that are correct."""
        return _percent(self.matched, self.test)

    @property
    def recall(self) -> float:
        """Percentage of the gold brackets that were found."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return _percent(2 * self.matched, self.gold + self.test)

    @property
    def complete_match(self) -> float:
        """Percentage of the valid sentences in which all brackets match."""
        return _percent(self.complete, self.valid)

    @property
    def average_crossing(self) -> float:
        """The mean number of crossing brackets per valid sentence."""
        return self.crossing / self.valid if self.valid else 0.0

    @property
    def tagging_accuracy(self) -> float | None:
        """Percentage of words with the correct part of speech; None without a tagging parser."""
        return None if self.untagged or not self.words else _percent(self.correct_tags, self.words)

    def add(self, other: "BracketCounts") -> None:
        """Add the counts of other sentences."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True, kw_only=True)
class BracketScore:
    """Counts of all sentences, and of those of at most 40 words, as EVALB prints them."""

    all: BracketCounts = field(default_factory=BracketCounts)
    short: BracketCounts = field(default_factory=BracketCounts)

    @property
    def signature(self) -> str:
        """The settings and excluded sentences, in sacreBLEU's notation."""
        counts = self.all
        return (
            f"evalb:COLLINS|tags:{'gold' if counts.untagged else 'own'}"
            f"|sentences:{counts.sentences}|errors:{counts.errors}|skipped:{counts.skipped}"
        )


def score_brackets(gold: Sequence[Tree], trees: Sequence[Tree | None]) -> BracketScore:
    """Score as many trees as there are gold trees; None stands for a sentence without a parse.

    Words with the tag XX (no part of speech) get the gold tree's tag, so that punctuation is
    deleted in both trees.
    """
    score = BracketScore()
    for gold_tree, tree in zip(gold, trees, strict=True):
        counts = _compare(gold_tree, tree)
        score.all.add(counts)
        if sum(leaf.tag != TRACE for leaf in _leaves(gold_tree)) <= CUTOFF_LENGTH:
            score.short.add(counts)
    return score


class _Sentence:
    """The words and brackets of a tree that EVALB compares; `tags` replace the tree's own."""

    def __init__(self, tree: Tree, tags: Sequence[str] | None = None) -> None:
        self.leaves: list[Leaf] = []
        self.brackets: Counter[Bracket] = Counter()
        remaining_tags = iter(tags or [leaf.tag for leaf in _leaves(tree)])
        starts: list[int] = []
        for node, ends in walk(tree):
            if isinstance(node, Leaf):
                tag = next(remaining_tags)
                if tag not in _DELETED_TAGS:
                    self.leaves.append(Leaf(tag, node.word))
            elif not ends:
                starts.append(len(self.leaves))
            else:
                start, end = starts.pop(), len(self.leaves)
                label = bare_label(node.label)
                if start < end and label not in _DELETED_TAGS:
                    self.brackets[_EQUIVALENT.get(label, label), start, end] += 1


def _compare(gold_tree: Tree, tree: Tree | None) -> BracketCounts:
    counts = BracketCounts(sentences=1)
    if tree is None or not (test := _Sentence(tree, _tags(tree, gold_tree))).leaves:
        counts.skipped = 1
        return counts
    gold = _Sentence(gold_tree)
    counts.untagged = sum(leaf.tag == UNTAGGED for leaf in _leaves(tree))
    if [leaf.word for leaf in gold.leaves] != [leaf.word for leaf in test.leaves]:
        counts.errors = 1
        return counts
    counts.gold = gold.brackets.total()
    counts.test = test.brackets.total()
    counts.matched = (gold.brackets & test.brackets).total()
    counts.complete = int(counts.gold == counts.test == counts.matched)
    counts.crossing = _num_crossing(gold.brackets, test.brackets)
    counts.words = len(gold.leaves)
    counts.correct_tags = sum(
        _EQUIVALENT.get(gold_leaf.tag, gold_leaf.tag) == _EQUIVALENT.get(leaf.tag, leaf.tag)
        for gold_leaf, leaf in zip(gold.leaves, test.leaves, strict=True)
    )
    return counts


def _tags(tree: Tree, gold: Tree) -> list[str]:
    """Return the tags of a tree; XX is replaced by the gold tag if both have as many words."""
    tags = [leaf.tag for leaf in _leaves(tree)]
    gold_tags = [leaf.tag for leaf in _leaves(gold) if leaf.tag != TRACE]
    if len(tags) - tags.count(TRACE) != len(gold_tags):
        return tags
    remaining = iter(gold_tags)
    aligned = [tag if tag == TRACE else next(remaining) for tag in tags]
    return [other if tag == UNTAGGED else tag for tag, other in zip(tags, aligned, strict=True)]


def _num_crossing(gold: Counter[Bracket], test: Counter[Bracket]) -> int:
    """Count the brackets that overlap a gold bracket without one containing the other."""
    spans = {(start, end) for _, start, end in gold}
    return sum(
        number
        for (_, first, last), number in test.items()
        if any(start < first < end < last or first < start < last < end for start, end in spans)
    )


def _leaves(tree: Tree) -> list[Leaf]:
    return [node for node, _ in walk(tree) if isinstance(node, Leaf)]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
