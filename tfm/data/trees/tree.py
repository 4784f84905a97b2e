"""Constituency trees, and their normal form for training and scoring parsers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

TOP = "TOP"
TRACE = "-NONE-"
UNTAGGED = "XX"

_ROOT_LABELS = (TOP, "ROOT", "S1")
_BARE_LABEL = re.compile(r"[^-=]+")


@dataclass(frozen=True)
class Leaf:
    """A word and its part of speech.

    Attributes:
        tag: Part of speech; XX if unknown.
        word: The word; brackets are not escaped.
    """

    tag: str
    word: str


@dataclass(frozen=True)
class Tree:
    """A constituent.

    Attributes:
        label: Category, such as NP.
        children: The words and constituents in it, at least one.
    """

    label: str
    children: "tuple[Tree | Leaf, ...]"


Node = Tree | Leaf


def walk(tree: Tree) -> Iterator[tuple[Node, bool]]:
    """Traverse a tree depth-first from left to right, without recursion.

    Yields:
        (node, False) at the start of each node, and (constituent, True) at the end of each
        constituent.
    """
    stack: list[tuple[Node, bool]] = [(tree, False)]
    while stack:
        node, is_end = stack.pop()
        yield node, is_end
        if isinstance(node, Tree) and not is_end:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))


def words_of(tree: Tree) -> list[str]:
    """Return the words of a tree."""
    return [node.word for node, _ in walk(tree) if isinstance(node, Leaf)]


def normalize(tree: Tree) -> Tree | None:
    """Reduce a tree to what parsers are trained and scored on.

    - Function tags and indices are removed: NP-SBJ-1 and NP=2 become NP. Parts of speech are kept.
    - Traces (-NONE-) are removed, and constituents of nothing but traces.
    - TOP, ROOT and S1 around a single constituent are removed; around several they become TOP.
    - Nothing else changes: an NP that becomes the only child of an NP is kept, as EVALB counts it.

    Returns:
        The tree, or None if it had only traces.
    """
    builder = TreeBuilder()
    root: Tree | None = None
    for node, is_end in walk(tree):
        if isinstance(node, Leaf):
            if node.tag != TRACE:
                builder.add(node)
        elif is_end:
            root = builder.close()
        else:
            builder.open(bare_label(node.label))
    while root is not None and root.label in _ROOT_LABELS:
        if len(root.children) > 1 or isinstance(root.children[0], Leaf):
            return replace(root, label=TOP)
        root = root.children[0]
    return root


def bare_label(label: str) -> str:
    """Remove function tags and indices from a label; a token such as -LRB- has neither."""
    match = _BARE_LABEL.match(label)
    return match[0] if match else label


class TreeBuilder:
    """Builds a tree from left to right, and drops empty constituents."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[Node]]] = []

    @property
    def depth(self) -> int:
        """The number of open constituents."""
        return len(self._open)

    def innermost(self, label: str) -> int:
        """Return the depth, from 1, of the innermost open constituent with a label; 0 if none."""
        depths = range(self.depth, 0, -1)
        return next((depth for depth in depths if self._open[depth - 1][0] == label), 0)

    def root(self) -> Tree:
        """Return the outermost constituent, which is still open."""
        label, children = self._open[0]
        return Tree(label, tuple(children))

    def open(self, label: str) -> None:
        """Open a constituent."""
        self._open.append((label, []))

    def add(self, leaf: Leaf) -> None:
        """Add a word to the innermost constituent."""
        self._open[-1][1].append(leaf)

    def close(self) -> Tree | None:
        """Close the innermost constituent; return None if it is empty and therefore dropped."""
        label, children = self._open.pop()
        if not children:
            return None
        tree = Tree(label, tuple(children))
        if self._open:
            self._open[-1][1].append(tree)
        return tree
