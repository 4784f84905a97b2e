"""Labelled bracket F1, as EVALB computes it with COLLINS.prm.

EVALB (Sekine and Collins 1997) is the scorer of Penn Treebank parsing. What it does:

- Words whose part of speech is punctuation (, : `` '' .) or a trace do not count, and spans are
  numbered without them; constituents of nothing else do not count either.
- TOP does not count. Of other labels, only what is before "-" or "=" does; PRT is ADVP.
- A constituent is correct if one of its label and span is in the other tree, each being used once.
- A sentence whose words differ from those of the gold tree is an error, one without a parse is
  skipped: neither is part of any other figure, so their numbers belong to the score.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields

from tfm.data.trees.tree import TOP, TRACE, UNTAGGED, Leaf, Tree, bare_label, walk
from tfm.errors import DataError

CUTOFF_LENGTH = 40

_DELETED_TAGS = frozenset((TOP, TRACE, ",", ":", "``", "''", "."))
_EQUIVALENT = {"PRT": "ADVP"}

# Label, first word and the word after the last, counted in words that are not deleted.
Bracket = tuple[str, int, int]
Span = tuple[int, int]


@dataclass(kw_only=True)
class BracketCounts:
    """What EVALB counts over some sentences, and the figures that it prints of them."""

    sentences: int = 0  # all, also errors and skipped ones
    errors: int = 0  # sentences whose words differ from those of the gold tree
    skipped: int = 0  # sentences without a parse
    gold: int = 0  # brackets of the gold trees
    test: int = 0  # brackets of the trees that are scored
    matched: int = 0  # brackets in both
    complete: int = 0  # sentences with all brackets right
    crossing: int = 0  # brackets of the scored trees that cross one of the gold tree
    no_crossing: int = 0  # sentences without any
    few_crossing: int = 0  # sentences with two or less
    words: int = 0  # words that count
    correct_tags: int = 0  # words with the part of speech of the gold tree
    untagged: int = 0  # words to which the parser gave no part of speech

    @property
    def valid(self) -> int:
        """Sentences that the figures are about."""
        return self.sentences - self.errors - self.skipped

    @property
    def precision(self) -> float:
        """Percent of the brackets that are right."""
        return _percent(self.matched, self.test)

    @property
    def recall(self) -> float:
        """Percent of the gold brackets that were found."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return _percent(2 * self.matched, self.gold + self.test)

    @property
    def complete_match(self) -> float:
        """Percent of the valid sentences with all brackets right."""
        return _percent(self.complete, self.valid)

    @property
    def average_crossing(self) -> float:
        """Crossing brackets a valid sentence."""
        return self.crossing / self.valid if self.valid else 0.0

    @property
    def tagging_accuracy(self) -> float | None:
        """Percent of the words with the right part of speech; None if the parser gives none."""
        return None if self.untagged or not self.words else _percent(self.correct_tags, self.words)

    def add(self, other: "BracketCounts") -> None:
        """Add the counts of other sentences."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True, kw_only=True)
class BracketScore:
    """Counts of all sentences, and of those of up to 40 words, which EVALB prints as well."""

    all: BracketCounts = field(default_factory=BracketCounts)
    short: BracketCounts = field(default_factory=BracketCounts)

    @property
    def signature(self) -> str:
        """What decides the score besides the trees."""
        counts = self.all
        return (
            f"evalb:COLLINS|tags:{'gold' if counts.untagged else 'own'}"
            f"|sentences:{counts.sentences}|errors:{counts.errors}|skipped:{counts.skipped}"
        )


def score_brackets(gold: Sequence[Tree], trees: Sequence[Tree | None]) -> BracketScore:
    """Score trees.

    A word tagged XX has no part of speech of its own and takes that of the gold tree, so that
    punctuation is deleted in both.

    Args:
        gold: The right trees, with parts of speech.
        trees: The trees to score; None for a sentence without a parse.

    Raises:
        DataError: They are not equally many, or none.
    """
    if len(gold) != len(trees) or not gold:
        raise DataError(
            f"there are {len(gold):,} gold trees and {len(trees):,} to score: "
            "both need one for each sentence"
        )
    score = BracketScore()
    for right, tree in zip(gold, trees, strict=True):
        counts = _compare(right, tree)
        score.all.add(counts)
        if sum(leaf.tag != TRACE for leaf in _leaves(right)) <= CUTOFF_LENGTH:
            score.short.add(counts)
    return score


class _Sentence:
    """A tree as EVALB sees it; `tags` are parts of speech in place of its own."""

    def __init__(self, tree: Tree, tags: Sequence[str] | None = None) -> None:
        self.leaves: list[Leaf] = []
        self.brackets: Counter[Bracket] = Counter()
        remaining = iter(tags or [leaf.tag for leaf in _leaves(tree)])
        starts: list[int] = []
        for node, ends in walk(tree):
            if isinstance(node, Leaf):
                tag = next(remaining)
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
    """The counts of one sentence."""
    counts = BracketCounts(sentences=1)
    if tree is None or not (test := _Sentence(tree, _with_gold_tags(tree, gold_tree))).leaves:
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
    counts.no_crossing = int(counts.crossing == 0)
    counts.few_crossing = int(counts.crossing <= 2)
    counts.words = len(gold.leaves)
    counts.correct_tags = sum(
        _EQUIVALENT.get(right.tag, right.tag) == _EQUIVALENT.get(leaf.tag, leaf.tag)
        for right, leaf in zip(gold.leaves, test.leaves, strict=True)
    )
    return counts


def _with_gold_tags(tree: Tree, gold: Tree) -> list[str]:
    """Parts of speech of a tree's words, those of the gold tree where they are XX.

    Only a tree of as many words as the gold tree has can take them.
    """
    own = [leaf.tag for leaf in _leaves(tree)]
    right = [leaf.tag for leaf in _leaves(gold) if leaf.tag != TRACE]
    if len(own) - own.count(TRACE) != len(right):
        return own
    remaining = iter(right)
    aligned = [tag if tag == TRACE else next(remaining) for tag in own]
    return [other if tag == UNTAGGED else tag for tag, other in zip(own, aligned, strict=True)]


def _num_crossing(gold: Counter[Bracket], test: Counter[Bracket]) -> int:
    """How many brackets overlap a gold bracket of which neither holds the other."""
    innermost = _innermost({(start, end) for _, start, end in gold})
    # What holds the innermost span reaches beyond it: if that does not cross, neither do others.
    return sum(
        number
        for (_, first, last), number in test.items()
        if innermost.get(first, (first, last))[1] < last
        or innermost.get(last, (first, last))[0] > first
    )


def _innermost(spans: Collection[Span]) -> dict[int, Span]:
    """For each place between two words of a span, the smallest span around it.

    Args:
        spans: Those of one tree: two of them are apart, or one holds the other.
    """
    innermost = {}
    around: list[Span] = []
    ahead = sorted(spans, key=lambda span: (-span[0], span[1]))  # the last comes next
    for place in range(max((end for _, end in spans), default=0)):
        while around and around[-1][1] <= place:
            around.pop()
        if around:
            innermost[place] = around[-1]
        while ahead and ahead[-1][0] == place:
            around.append(ahead.pop())
    return innermost


def _leaves(tree: Tree) -> list[Leaf]:
    return [node for node, _ in walk(tree) if isinstance(node, Leaf)]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
