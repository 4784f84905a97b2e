"""Trees in brackets, as treebanks and parsers write them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tfm.data.text import read_lines
from tfm.data.trees.tree import TOP, Leaf, Node, Tree, walk
from tfm.errors import DataError

_PART = re.compile(r"[()]|[^\s()]+")
_NO_PARSE = ("", "()", "(())")
_UNESCAPED = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
}
_ESCAPE = re.compile("|".join(_UNESCAPED))
_ESCAPED = str.maketrans({bracket: name for name, bracket in _UNESCAPED.items()})


def read_trees(path: Path) -> Iterator[Tree]:
    """Read a file of bracketed trees, as treebanks come: a tree may span lines.

    The outermost bracket may have no label: it is called TOP. Brackets in words (-LRB-, -RCB-, …)
    become brackets again.

    Raises:
        DataError: Brackets are not balanced, or one is neither a word nor a constituent.
    """
    lines = read_lines(path, strict=True)
    return _parsed(((line.decode(), f"{path}, line {n:,}") for n, line in enumerate(lines, 1)))


def tree_of_line(line: str, *, where: str) -> Tree | None:
    """Read one line of a file that has a tree a line, as parsers write them.

    Args:
        line: The line.
        where: File and line, for the error.

    Returns:
        The tree, or TOP over several; None for an empty line or empty brackets, which say that
        there is no parse.

    Raises:
        DataError: Brackets are not balanced, or one is neither a word nor a constituent.
    """
    if "".join(line.split()) in _NO_PARSE:
        return None
    tree, *others = _parsed([(line, where)])
    return Tree(TOP, (tree, *others)) if others else tree


def bracketed(tree: Tree) -> str:
    """A tree in brackets, on one line."""
    parts: list[str] = []
    for node, ends in walk(tree):
        if isinstance(node, Leaf):
            parts.append(f" ({node.tag} {node.word.translate(_ESCAPED)})")
        else:
            parts.append(")" if ends else f" ({node.label}")
    return "".join(parts)[1:]


def unescaped(word: str) -> str:
    """A word of a treebank with its brackets (-LRB-, -RRB-, …) as people write them."""
    return _ESCAPE.sub(lambda name: _UNESCAPED[name[0]], word)


def _parsed(lines: Iterable[tuple[str, str]]) -> Iterator[Tree]:
    """The trees of some lines.

    Args:
        lines: Each line, and where it is.
    """
    reading = _Reading()
    for line, where in lines:
        for part in _PART.findall(line):
            tree = reading.add(part, where)
            if tree is not None:
                yield tree
    reading.check_end()


@dataclass
class _Bracket:
    """A bracket while it is read."""

    where: str
    label: str = ""
    word: str | None = None
    children: list[Node] = field(default_factory=list)


class _Reading:
    """A tree while it is read."""

    def __init__(self) -> None:
        self._open: list[_Bracket] = []

    def add(self, part: str, where: str) -> Tree | None:
        """Go on by a bracket, label or word; the tree if that was its last bracket."""
        if part == "(":
            self._open.append(_Bracket(where))
        elif not self._open:
            found = "a closing bracket that" if part == ")" else f"{part[:40]!r}, which"
            raise DataError(f"{where} has {found} belongs to no tree: correct the file")
        elif part == ")":
            return self._close()
        else:
            self._add_text(part)
        return None

    def check_end(self) -> None:
        """Raise DataError if a tree has not ended."""
        if self._open:
            raise DataError(
                f"the tree that starts at {self._open[0].where} has {len(self._open)} brackets "
                "that are not closed at the end: the file is cut short, or brackets are missing"
            )

    def _close(self) -> Tree | None:
        bracket = self._open.pop()
        node: Node
        if bracket.children and (bracket.label or not self._open):
            node = Tree(bracket.label or TOP, tuple(bracket.children))
        elif bracket.word is not None:
            node = Leaf(bracket.label, bracket.word)
        else:
            raise _malformed(bracket)
        if not self._open:
            return node if isinstance(node, Tree) else Tree(TOP, (node,))
        if self._open[-1].word is not None:
            raise _malformed(self._open[-1])
        self._open[-1].children.append(node)
        return None

    def _add_text(self, part: str) -> None:
        bracket = self._open[-1]
        if bracket.children or bracket.word is not None:
            raise _malformed(bracket)
        if bracket.label:
            bracket.word = unescaped(part)
        else:
            bracket.label = part


def _malformed(bracket: _Bracket) -> DataError:
    return DataError(
        f"{bracket.where} has a bracket that is neither a constituent, such as (NP (NN rain)), nor "
        "a word, such as (NN rain): correct the file"
    )
