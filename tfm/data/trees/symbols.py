"""Linearize trees as target sequences, and restore trees from a model's output.

The symbols are those of Vinyals et al. 2015, "Grammar as a Foreign Language", §3.1: closing
brackets are labeled, and XX stands for each word with its part of speech.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tfm.data.trees.tree import TOP, UNTAGGED, Leaf, Tree, TreeBuilder, walk

_BRACKET = re.compile(r"[()][^\s()]+")


def linearize(tree: Tree) -> list[str]:
    """Return the symbols of a tree."""
    return [
        UNTAGGED if isinstance(node, Leaf) else f"{')' if is_end else '('}{node.label}"
        for node, is_end in walk(tree)
    ]


def restore(symbols: Iterable[str], words: Sequence[str]) -> tuple[Tree, Counter[str]]:
    """Build a tree from a model's symbols and the words of the sentence, at least one.

    Returns:
        A tree of exactly these words, with XX as parts of speech, and the number of necessary
        repairs of each kind:

        - missing closings: Constituents closed with one around them, or at the end.
        - superfluous closings: Closing brackets dropped because no constituent was open.
        - mismatched closings: Closing brackets with the label of no open constituent, which close
          the innermost.
        - missing leaves: Words without a symbol, added to the end of the outermost constituent.
        - superfluous leaves: Symbols of words dropped after the last word.
        - empty constituents: Constituents dropped because they have no words.
        - outside root: Words and constituents moved into the outermost constituent.
        - unknown symbols: Other symbols, dropped.
    """
    if not words:
        raise ValueError("a tree has at least one word")
    tree = _Restoration(words)
    for symbol in symbols:
        if symbol == UNTAGGED:
            tree.add_next_leaf()
        elif not _BRACKET.fullmatch(symbol):
            tree.repairs["unknown symbols"] += 1
        elif symbol[0] == "(":
            tree.open(symbol[1:])
        else:
            tree.close_label(symbol[1:])
    return tree.finish(), tree.repairs


class _Restoration(TreeBuilder):
    """A tree while it is restored. The outermost constituent stays open until the end."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.repairs: Counter[str] = Counter()
        self._leaves = iter([Leaf(UNTAGGED, word) for word in words])
        self._root_has_ended = False

    def open(self, label: str) -> None:
        self._note_if_outside_root()
        super().open(label)

    def close(self) -> Tree | None:
        tree = super().close()
        if tree is None:
            self.repairs["empty constituents"] += 1
        return tree

    def add_next_leaf(self) -> None:
        leaf = next(self._leaves, None)
        if leaf is None:
            self.repairs["superfluous leaves"] += 1
            return
        if not self.depth:
            self.open(TOP)
            self._root_has_ended = True
        self._note_if_outside_root()
        self.add(leaf)

    def close_label(self, label: str) -> None:
        depth = self.innermost(label)
        if depth > 1:
            self._close_down_to(depth)
            self.close()
        elif depth == 1 and not self._root_has_ended:
            self._close_down_to(1)
            self._root_has_ended = True
        elif self.depth > 1:
            self.repairs["mismatched closings"] += 1
            self.close()
        else:
            self.repairs["superfluous closings"] += 1

    def finish(self) -> Tree:
        self._close_down_to(1)
        if not self.depth:
            self.open(TOP)
        elif not self._root_has_ended:
            self.repairs["missing closings"] += 1
        for leaf in self._leaves:
            self.repairs["missing leaves"] += 1
            self.add(leaf)
        return self.root()

    def _note_if_outside_root(self) -> None:
        if self._root_has_ended and self.depth == 1:
            self.repairs["outside root"] += 1

    def _close_down_to(self, depth: int) -> None:
        """Close unclosed constituents until `depth` of them are open."""
        while self.depth > depth:
            self.repairs["missing closings"] += 1
            self.close()
