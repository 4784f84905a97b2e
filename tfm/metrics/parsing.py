"""Lines that a parser wrote, and gold trees, to labeled bracket F1."""

import re
from collections.abc import Sequence

from tfm.data.trees.brackets import tree_of_line
from tfm.data.trees.symbols import Repairs, restore
from tfm.data.trees.tree import TRACE, UNTAGGED, Leaf, Tree, walk
from tfm.errors import DataError, UsageError
from tfm.metrics.brackets import CUTOFF_LENGTH, BracketScore, score_brackets
from tfm.metrics.metric import Comparison, MetricScore

# Of the two ways to write trees, only symbols have labels behind closing brackets,
_CLOSING_SYMBOL = re.compile(r"\)[^\s()]")
# and only brackets close without one. A parser's first tries may close nothing at all.
_OPENING_SYMBOL = re.compile(rf"\([^\s()]+(?!\S)|(?<!\S){UNTAGGED}(?!\S)")


def bracket_f1(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Score trees, a line for each sentence.

    Args:
        hypotheses: All of them trees in brackets, or all symbols of `tfm.data.trees`, which are
            then made trees of the gold tree's words.
        references: One list of the right trees in brackets, with parts of speech.
        baseline: Other lines, scored likewise; there is no test.

    Raises:
        DataError: A line is no tree.
        UsageError: There are several lists of right trees.
    """
    if len(references) != 1:
        raise UsageError(
            f"bracket-f1 takes one gold tree a sentence, not {len(references)}: give one reference"
        )
    [gold] = references
    gold_trees = [_gold_tree(line, number) for number, line in enumerate(gold, start=1)]
    score, repairs = _scored(hypotheses, gold_trees, "hypotheses")
    comparison = None
    if baseline is not None:
        comparison = Comparison(baseline=_scored(baseline, gold_trees, "baseline")[0].all.f1)
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
        details["repairs"] = repairs.total
    return MetricScore(
        name="bracket-f1",
        label="bracket F1",
        value=counts.f1,
        signature=score.signature,
        comparison=comparison,
        details=details,
    )


def _scored(
    lines: Sequence[str], gold: Sequence[Tree], name: str
) -> tuple[BracketScore, Repairs | None]:
    """The score, and what had to be mended; None for trees in brackets, which are not."""
    if not _are_symbols(lines):
        trees = [
            tree_of_line(line, where=f"{name}, line {number:,}")
            for number, line in enumerate(lines, start=1)
        ]
        return score_brackets(gold, trees), None
    repairs = Repairs()
    restored = []
    for line, right in zip(lines, gold, strict=True):
        tree, mended = restore(line.split(), _words(right))
        restored.append(tree)
        repairs.add(mended)
    return score_brackets(gold, restored), repairs


def _are_symbols(lines: Sequence[str]) -> bool:
    """Whether lines that a parser wrote are symbols, not trees in brackets."""
    if any(")" in line for line in lines):
        return any(map(_CLOSING_SYMBOL.search, lines))
    return any(map(_OPENING_SYMBOL.search, lines))


def _gold_tree(line: str, number: int) -> Tree:
    where = f"reference, line {number:,}"
    tree = tree_of_line(line, where=where)
    if tree is None or not _words(tree):
        raise DataError(f"{where} has no tree: correct the file")
    return tree


def _words(tree: Tree) -> list[str]:
    """The words that a parser reads: traces are none."""
    return [node.word for node, _ in walk(tree) if isinstance(node, Leaf) and node.tag != TRACE]
