"""Labeled bracket F1 of a parser's output, as EVALB with COLLINS.prm (Sekine and Collins 1997).

- Punctuation (tags , : `` '' .) and traces are deleted before spans are numbered; constituents
  without other words are ignored.
- TOP is ignored. Labels end before "-" or "="; PRT equals ADVP.
- A constituent is correct if the other tree has one with the same label and span; each constituent
  matches at most once.
- A sentence with other words than the gold tree is an error; a sentence without a parse is skipped.
  Both are excluded from all other counts, so the signature reports their numbers.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tfm.errors import DataError, UsageError
from tfm.metrics.metric import Comparison, MetricScore
from tfm.text.trees import (
    TOP,
    TRACE,
    UNTAGGED,
    Leaf,
    Tree,
    bare_label,
    parse_tree_line,
    restore,
    walk,
)

CUTOFF_LENGTH = 40

_DELETED_TAGS = frozenset((TOP, TRACE, ",", ":", "``", "''", "."))
_EQUIVALENT = {"PRT": "ADVP"}
# Only symbols have a label after a closing bracket.
_CLOSING_SYMBOL = re.compile(r"\)[^\s()]")
_OPENING_SYMBOL = re.compile(rf"\([^\s()]+(?!\S)|(?<!\S){UNTAGGED}(?!\S)")

# Label, start and end (exclusive) of a constituent, in words that are not deleted.
Bracket = tuple[str, int, int]


@dataclass(kw_only=True)
class BracketCounts:
    """EVALB's counts over sentences, and the metrics that are computed from them."""

    sentences: int = 0  # including errors and skipped
    errors: int = 0  # sentences with other words than the gold tree
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
        """Percentage of the gold brackets that the parser produced."""
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

    @property
    def signature(self) -> str:
        """The settings and excluded sentences, in sacreBLEU's notation."""
        return (
            f"evalb:COLLINS|tags:{'gold' if self.untagged else 'own'}"
            f"|sentences:{self.sentences}|errors:{self.errors}|skipped:{self.skipped}"
        )

    def add(self, other: "BracketCounts") -> None:
        """Add the counts of other sentences."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


def bracket_f1(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Score trees, one line per sentence, against one list of gold trees with parts of speech.

    Hypotheses and baseline are trees in brackets, or symbols of `tfm.text.trees`, which are
    combined with the words of the gold trees. There is no significance test.
    """
    if len(references) != 1:
        raise UsageError(
            f"bracket-f1 takes one gold tree per sentence, not {len(references)}: give one "
            "reference"
        )
    [gold] = references
    gold_trees = [_parse_gold(line, number) for number, line in enumerate(gold, start=1)]
    counts, short, repairs = _score(hypotheses, gold_trees, "hypotheses")
    others = None if baseline is None else _score(baseline, gold_trees, "baseline")[0]
    details: dict[str, float] = {
        "precision": counts.precision,
        "recall": counts.recall,
        "complete match": counts.complete_match,
        "crossing brackets": counts.average_crossing,
        f"F1 up to {CUTOFF_LENGTH} words": short.f1,
    }
    if counts.tagging_accuracy is not None:
        details["tagging accuracy"] = counts.tagging_accuracy
    details |= {"errors": counts.errors, "skipped": counts.skipped}
    if repairs is not None:
        details["repairs"] = repairs
    return MetricScore(
        name="bracket-f1",
        label="bracket F1",
        value=counts.f1,
        signature=counts.signature,
        comparison=None if others is None else Comparison(baseline=others.f1),
        details=details,
    )


def _score(
    lines: Sequence[str], gold: Sequence[Tree], name: str
) -> tuple[BracketCounts, BracketCounts, int | None]:
    """Return the counts of `score_brackets`, and the repairs of symbols; None for brackets."""
    # The output of a hardly trained parser may have no closing bracket: then the opening ones tell.
    symbol = _CLOSING_SYMBOL if any(")" in line for line in lines) else _OPENING_SYMBOL
    if any(map(symbol.search, lines)):
        pairs = zip(lines, gold, strict=True)
        trees, repairs = zip(
            *(restore(line.split(), _words(tree)) for line, tree in pairs), strict=True
        )
        return *score_brackets(gold, trees), sum(repairs)
    numbered = enumerate(lines, start=1)
    parsed = [parse_tree_line(line, where=f"{name}, line {number:,}") for number, line in numbered]
    return *score_brackets(gold, parsed), None


def _parse_gold(line: str, number: int) -> Tree:
    where = f"reference, line {number:,}"
    tree = parse_tree_line(line, where=where)
    if tree is None or not _words(tree):
        raise DataError(f"{where} has no tree: correct the file")
    return tree


def _words(tree: Tree) -> list[str]:
    """Return the words of a tree, without traces."""
    return [leaf.word for leaf in _leaves(tree) if leaf.tag != TRACE]


def score_brackets(
    gold: Sequence[Tree], trees: Sequence[Tree | None]
) -> tuple[BracketCounts, BracketCounts]:
    """Return the counts of all sentences, and of sentences of at most 40 words, as EVALB does.

    There are as many trees as gold trees; None stands for a sentence without a parse.
    Words with the tag XX (no part of speech) get the gold tree's tag, so that punctuation is
    deleted in both trees.
    """
    every, short = BracketCounts(), BracketCounts()
    for gold_tree, tree in zip(gold, trees, strict=True):
        counts = _compare(gold_tree, tree)
        every.add(counts)
        if len(_words(gold_tree)) <= CUTOFF_LENGTH:
            short.add(counts)
    return every, short


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
    """Return the tags of a tree; XX is replaced by the gold tag if the trees are equally long."""
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
