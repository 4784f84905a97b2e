"""What a constituency tree is, and what of it parsers are trained and scored on."""

import re
from collections import defaultdict
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
        tag: Part of speech; XX if it has none.
        word: The word, a bracket as a bracket.
    """

    tag: str
    word: str


@dataclass(frozen=True)
class Tree:
    """A constituent.

    Attributes:
        label: Its kind, such as NP.
        children: What it consists of, at least one.
    """

    label: str
    children: "tuple[Tree | Leaf, ...]"


Node = Tree | Leaf


def walk(tree: Tree) -> Iterator[tuple[Node, bool]]:
    """Go through a tree from left to right, however deep it is.

    Yields:
        Each node and False where it starts; each constituent and True where it ends.
    """
    ahead: list[tuple[Node, bool]] = [(tree, False)]
    while ahead:
        node, ends = ahead.pop()
        yield node, ends
        if isinstance(node, Tree) and not ends:
            ahead.append((node, True))
            ahead.extend((child, False) for child in reversed(node.children))


def words_of(tree: Tree) -> list[str]:
    """The words of a tree."""
    return [node.word for node, _ in walk(tree) if isinstance(node, Leaf)]


def normalize(tree: Tree) -> Tree | None:
    """Keep of a tree what parsers are trained and scored on.

    - Function tags and indices go: NP-SBJ-1 and NP=2 are NP. Parts of speech stay as they are.
    - Traces (-NONE-) go, and constituents in which nothing else was.
    - TOP, ROOT and S1 around a single constituent go; around several they are TOP.
    - Nothing else changes. An NP that has become the only child of an NP stays, as EVALB counts it.

    Returns:
        The tree, or None if it was nothing but traces.
    """
    building = TreeBuilder()
    root: Tree | None = None
    for node, ends in walk(tree):
        if isinstance(node, Leaf):
            if node.tag != TRACE:
                building.add(node)
        elif ends:
            root = building.close()
        else:
            building.open(bare_label(node.label))
    while root is not None and root.label in _ROOT_LABELS:
        [child, *others] = root.children
        if others or isinstance(child, Leaf):
            return replace(root, label=TOP)
        root = child
    return root


def bare_label(label: str) -> str:
    """A label without function tags and indices; one like -LRB- is no function tag."""
    match = _BARE_LABEL.match(label)
    return match[0] if match else label


class TreeBuilder:
    """A tree while it grows from left to right; constituents that stay empty are left out."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[Node]]] = []
        self._depths: defaultdict[str, list[int]] = defaultdict(list)  # open ones of each label

    @property
    def depth(self) -> int:
        """How many constituents are open."""
        return len(self._open)

    def innermost(self, label: str) -> int:
        """Depth of the innermost open constituent of a label, from 1; 0 if there is none."""
        depths = self._depths.get(label)
        return depths[-1] if depths else 0

    def root(self) -> Tree:
        """The outermost constituent so far."""
        [(label, children), *_] = self._open
        return Tree(label, tuple(children))

    def open(self, label: str) -> None:
        """Begin a constituent."""
        self._open.append((label, []))
        self._depths[label].append(self.depth)

    def add(self, leaf: Leaf) -> None:
        """Put a word into the innermost constituent."""
        self._open[-1][1].append(leaf)

    def close(self) -> Tree | None:
        """Close the innermost constituent; None if it is empty, and so left out."""
        label, children = self._open.pop()
        self._depths[label].pop()
        if not children:
            return None
        tree = Tree(label, tuple(children))
        if self._open:
            self._open[-1][1].append(tree)
        return tree
