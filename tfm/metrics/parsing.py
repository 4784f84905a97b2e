"""Labeled bracket F1 of a parser's output lines."""

import re
from collections import Counter
from collections.abc import Sequence

from tfm.data.trees.brackets import parse_tree_line
from tfm.data.trees.symbols import restore
from tfm.data.trees.tree import TRACE, UNTAGGED, Leaf, Tree, walk
from tfm.errors import DataError, UsageError
from tfm.metrics.brackets import CUTOFF_LENGTH, BracketScore, score_brackets
from tfm.metrics.metric import Comparison, MetricScore

# Only symbols have a label after a closing bracket.
_CLOSING_SYMBOL = re.compile(r"\)[^\s()]")
# The output of a hardly trained parser may contain no closing bracket: then the opening ones tell.
_OPENING_SYMBOL = re.compile(rf"\([^\s()]+(?!\S)|(?<!\S){UNTAGGED}(?!\S)")


def bracket_f1(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Score trees, one line per sentence, against one list of gold trees with parts of speech.

    Hypotheses and baseline are trees in brackets, or symbols of `tfm.data.trees`, which are
    combined with the words of the gold trees. There is no significance test.

    Raises:
        DataError: A line is not a tree.
        UsageError: There are several lists of gold trees.
    """
    if len(references) != 1:
        raise UsageError(
            f"bracket-f1 takes one gold tree per sentence, not {len(references)}: give one "
            "reference"
        )
    [gold] = references
    gold_trees = [_parse_gold(line, number) for number, line in enumerate(gold, start=1)]
    score, repairs = _score(hypotheses, gold_trees, "hypotheses")
    comparison = None
    if baseline is not None:
        comparison = Comparison(baseline=_score(baseline, gold_trees, "baseline")[0].all.f1)
    counts = score.all
    details: dict[str, float] = {
        "precision": counts.precision,
        "recall": counts.recall,
        "complete match": counts.complete_match,
        "crossing brackets": counts.average_crossing,
        f"F1 up to {CUTOFF_LENGTH} words": score.short.f1,
    }
    if counts.tagging_accuracy is not None:
        details["tagging accuracy"] = counts.tagging_accuracy
    details |= {"errors": counts.errors, "skipped": counts.skipped}
    if repairs is not None:
        details["repairs"] = repairs.total()
    return MetricScore(
        name="bracket-f1",
        label="bracket F1",
        value=counts.f1,
        signature=score.signature,
        comparison=comparison,
        details=details,
    )


def _score(
    lines: Sequence[str], gold: Sequence[Tree], name: str
) -> tuple[BracketScore, Counter[str] | None]:
    """Return the score and the repairs that symbols needed; None for trees in brackets."""
    if not _are_symbols(lines):
        trees = [
            parse_tree_line(line, where=f"{name}, line {number:,}")
            for number, line in enumerate(lines, start=1)
        ]
        return score_brackets(gold, trees), None
    repairs: Counter[str] = Counter()
    restored = []
    for line, gold_tree in zip(lines, gold, strict=True):
        tree, tree_repairs = restore(line.split(), _words(gold_tree))
        restored.append(tree)
        repairs.update(tree_repairs)
    return score_brackets(gold, restored), repairs


def _are_symbols(lines: Sequence[str]) -> bool:
    """Return whether a parser's output lines are symbols, not trees in brackets."""
    if any(")" in line for line in lines):
        return any(map(_CLOSING_SYMBOL.search, lines))
    return any(map(_OPENING_SYMBOL.search, lines))


def _parse_gold(line: str, number: int) -> Tree:
    where = f"reference, line {number:,}"
    tree = parse_tree_line(line, where=where)
    if tree is None or not _words(tree):
        raise DataError(f"{where} has no tree: correct the file")
    return tree


def _words(tree: Tree) -> list[str]:
    """Return the words of a tree, without traces."""
    return [node.word for node, _ in walk(tree) if isinstance(node, Leaf) and node.tag != TRACE]
