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
        The tree, or TOP over several; None for no parse: an empty line or empty brackets.

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


@dataclass
class _Bracket:
    """A bracket while it is read."""

    where: str
    label: str = ""
    word: str | None = None
    children: list[Node] = field(default_factory=list)


def _parsed(lines: Iterable[tuple[str, str]]) -> Iterator[Tree]:
    """The trees of some lines, each given with where it is."""
    opened: list[_Bracket] = []  # those that are open, the outermost first
    for line, where in lines:
        for part in _PART.findall(line):
            if part == "(":
                opened.append(_Bracket(where))
            elif not opened:
                found = "a closing bracket that" if part == ")" else f"{part[:40]!r}, which"
                raise DataError(f"{where} has {found} belongs to no tree: correct the file")
            elif part != ")":
                _add_text(opened[-1], part)
            else:
                node = _closed(opened.pop(), is_outermost=not opened)
                if opened:
                    _add_child(opened[-1], node)
                else:
                    yield node if isinstance(node, Tree) else Tree(TOP, (node,))
    if opened:
        raise DataError(
            f"the tree that starts at {opened[0].where} has {len(opened)} brackets that are not "
            "closed at the end: the file is cut short, or brackets are missing"
        )


def _add_text(bracket: _Bracket, text: str) -> None:
    if bracket.children or bracket.word is not None:
        raise _malformed(bracket)
    if bracket.label:
        bracket.word = unescaped(text)
    else:
        bracket.label = text


def _add_child(bracket: _Bracket, child: Node) -> None:
    if bracket.word is not None:
        raise _malformed(bracket)
    bracket.children.append(child)


def _closed(bracket: _Bracket, *, is_outermost: bool) -> Node:
    if bracket.children and (bracket.label or is_outermost):
        return Tree(bracket.label or TOP, tuple(bracket.children))
    if bracket.word is None:
        raise _malformed(bracket)
    return Leaf(bracket.label, bracket.word)


def _malformed(bracket: _Bracket) -> DataError:
    return DataError(
        f"{bracket.where} has a bracket that is neither a constituent, such as (NP (NN rain)), nor "
        "a word, such as (NN rain): correct the file"
    )
