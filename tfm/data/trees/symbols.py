"""Trees as the symbols that a model learns to write.

The symbols are those of Vinyals et al. 2015, "Grammar as a Foreign Language", §3.1: closing
brackets are typed, and XX stands for each word with its part of speech.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from tfm.data.trees.tree import TOP, UNTAGGED, Leaf, Tree, TreeBuilder, walk

_BRACKET = re.compile(r"[()][^\s()]+")


@dataclass(kw_only=True)
class Repairs:
    """What `restore` had to mend; all zero for symbols that are a tree of the sentence.

    Attributes:
        missing_closings: Constituents that had to be closed with one around them, or at the end.
        superfluous_closings: Closing brackets with nothing to close, left out.
        mismatched_closings: Closing brackets with the label of no open constituent, taken for the
            innermost's.
        missing_leaves: Words without a symbol, added to the end of the outermost constituent.
        superfluous_leaves: Symbols of words beyond the last, left out.
        empty_constituents: Constituents without words, left out.
        outside_root: Words and constituents outside of the outermost constituent, moved into it.
        unknown_symbols: What is no symbol at all, left out.
    """

    missing_closings: int = 0
    superfluous_closings: int = 0
    mismatched_closings: int = 0
    missing_leaves: int = 0
    superfluous_leaves: int = 0
    empty_constituents: int = 0
    outside_root: int = 0
    unknown_symbols: int = 0

    @property
    def total(self) -> int:
        """All repairs together."""
        return sum(getattr(self, item.name) for item in fields(self))

    def add(self, other: "Repairs") -> None:
        """Add the counts of another tree."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


def linearize(tree: Tree) -> list[str]:
    """The symbols of a tree."""
    return [
        UNTAGGED if isinstance(node, Leaf) else f"{')' if ends else '('}{node.label}"
        for node, ends in walk(tree)
    ]


def restore(symbols: Iterable[str], words: Sequence[str]) -> tuple[Tree, Repairs]:
    """Make a tree of a model's symbols and the words of the sentence, at least one.

    Returns:
        A tree of exactly these words, their parts of speech XX, and what had to be mended.
    """
    if not words:
        raise ValueError("a tree has at least one word")
    restoration = _Restoration(words)
    for symbol in symbols:
        restoration.add(symbol)
    return restoration.finish(), restoration.repairs


class _Restoration:
    """A tree that is being restored. The outermost constituent stays open until the end."""

    def __init__(self, words: Sequence[str]) -> None:
        self.repairs = Repairs()
        self._leaves = iter([Leaf(UNTAGGED, word) for word in words])
        self._building = TreeBuilder()
        self._root_has_ended = False

    def add(self, symbol: str) -> None:
        """Go on by one symbol."""
        if symbol == UNTAGGED:
            self._add_leaf()
        elif not _BRACKET.fullmatch(symbol):
            self.repairs.unknown_symbols += 1
        elif symbol[0] == "(":
            self._open(symbol[1:])
        else:
            self._close(symbol[1:])

    def finish(self) -> Tree:
        """End the sentence."""
        building = self._building
        self._close_down_to(1)
        if not building.depth:
            building.open(TOP)
        elif not self._root_has_ended:
            self.repairs.missing_closings += 1
        for leaf in self._leaves:
            self.repairs.missing_leaves += 1
            building.add(leaf)
        return building.root()

    def _open(self, label: str) -> None:
        self.repairs.outside_root += self._root_has_ended and self._building.depth == 1
        self._building.open(label)

    def _add_leaf(self) -> None:
        building = self._building
        leaf = next(self._leaves, None)
        if leaf is None:
            self.repairs.superfluous_leaves += 1
            return
        if not building.depth:
            building.open(TOP)
            self._root_has_ended = True
        self.repairs.outside_root += self._root_has_ended and building.depth == 1
        building.add(leaf)

    def _close(self, label: str) -> None:
        depth = self._building.innermost(label)
        if depth > 1:
            self._close_down_to(depth)
            self._close_innermost()
        elif depth == 1 and not self._root_has_ended:
            self._close_down_to(1)
            self._root_has_ended = True
        elif self._building.depth > 1:
            self.repairs.mismatched_closings += 1
            self._close_innermost()
        else:
            self.repairs.superfluous_closings += 1

    def _close_down_to(self, depth: int) -> None:
        """Close what was forgotten, until so many constituents are open."""
        while self._building.depth > depth:
            self.repairs.missing_closings += 1
            self._close_innermost()

    def _close_innermost(self) -> None:
        self.repairs.empty_constituents += self._building.close() is None
