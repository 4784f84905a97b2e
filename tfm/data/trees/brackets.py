"""Read and write bracketed trees, the format of treebanks and parsers."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tfm.data.text import read_lines
from tfm.data.trees.tree import TOP, Leaf, Node, Tree, walk
from tfm.errors import DataError

_SYMBOL = re.compile(r"[()]|[^\s()]+")
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
    """Read a file of bracketed trees, which may span lines.

    An outermost bracket without a label is labeled TOP. Escaped brackets in words (-LRB-, -RCB-, …)
    are unescaped.

    Raises:
        DataError: Brackets are unbalanced, or one is neither a word nor a constituent.
    """
    lines = read_lines(path, strict=True)
    return parse_trees(((line.decode(), f"{path}, line {n:,}") for n, line in enumerate(lines, 1)))


def parse_tree_line(line: str, *, where: str) -> Tree | None:
    """Parse a line of a file with one tree per line; `where` names it in error messages.

    Returns:
        The tree; TOP over the trees if there are several; None if the line or its brackets are
        empty, as if a parser found no tree.

    Raises:
        DataError: Brackets are unbalanced, or one is neither a word nor a constituent.
    """
    if "".join(line.split()) in _NO_PARSE:
        return None
    trees = tuple(parse_trees([(line, where)]))
    return Tree(TOP, trees) if len(trees) > 1 else trees[0]


def bracketed(tree: Tree) -> str:
    """Write a tree in brackets, on one line."""
    brackets: list[str] = []
    for node, is_end in walk(tree):
        if isinstance(node, Leaf):
            brackets.append(f" ({node.tag} {node.word.translate(_ESCAPED)})")
        else:
            brackets.append(")" if is_end else f" ({node.label}")
    return "".join(brackets)[1:]


def unescaped(word: str) -> str:
    """Replace the escapes of brackets in a treebank's word (-LRB-, -RRB-, …) by brackets."""
    return _ESCAPE.sub(lambda name: _UNESCAPED[name[0]], word)


def parse_trees(lines: Iterable[tuple[str, str]]) -> Iterator[Tree]:
    """Parse the trees of (line, where) pairs; errors name a line by its `where`."""
    stack: list[tuple[str, list[str | Node]]] = []  # where brackets opened, and what is in them
    for line, where in lines:
        for symbol in _SYMBOL.findall(line):
            if symbol == "(":
                stack.append((where, []))
            elif not stack:
                found = "a closing bracket" if symbol == ")" else repr(symbol[:40])
                raise DataError(f"{where} has {found} outside any tree: correct the file")
            elif symbol != ")":
                stack[-1][1].append(symbol)
            else:
                start, content = stack.pop()
                node = _node(content, start, is_outermost=not stack)
                if stack:
                    stack[-1][1].append(node)
                else:
                    yield node if isinstance(node, Tree) else Tree(TOP, (node,))
    if stack:
        raise DataError(
            f"the tree that starts at {stack[0][0]} has {len(stack)} unclosed brackets at the "
            "end: the file is truncated, or brackets are missing"
        )


def _node(content: list[Any], where: str, *, is_outermost: bool) -> Node:
    kinds = [*map(type, content)]
    if kinds == [str, str]:
        return Leaf(content[0], unescaped(content[1]))
    if kinds[:1] == [str] and str not in kinds[1:] and len(kinds) > 1:
        return Tree(content[0], tuple(content[1:]))
    if kinds and is_outermost and str not in kinds:
        return Tree(TOP, tuple(content))
    raise DataError(
        f"{where} has a bracket that is neither a constituent, such as (NP (NN rain)), nor a word, "
        "such as (NN rain): correct the file"
    )
