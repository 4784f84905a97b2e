"""Read and write bracketed trees, the format of treebanks and parsers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
    return _parse(((line.decode(), f"{path}, line {n:,}") for n, line in enumerate(lines, 1)))


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
    trees = tuple(_parse([(line, where)]))
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


@dataclass
class _OpenBracket:
    where: str
    label: str = ""
    word: str | None = None
    children: list[Node] = field(default_factory=list)


def _parse(lines: Iterable[tuple[str, str]]) -> Iterator[Tree]:
    """Parse the trees of (line, where) pairs."""
    stack: list[_OpenBracket] = []
    for line, where in lines:
        for symbol in _SYMBOL.findall(line):
            if symbol == "(":
                stack.append(_OpenBracket(where))
            elif not stack:
                found = "a closing bracket" if symbol == ")" else repr(symbol[:40])
                raise DataError(f"{where} has {found} outside any tree: correct the file")
            elif symbol != ")":
                _add_text(stack[-1], symbol)
            else:
                node = _close(stack.pop(), is_outermost=not stack)
                if not stack:
                    yield node if isinstance(node, Tree) else Tree(TOP, (node,))
                elif stack[-1].word is not None:
                    raise _malformed(stack[-1])
                else:
                    stack[-1].children.append(node)
    if stack:
        raise DataError(
            f"the tree that starts at {stack[0].where} has {len(stack)} unclosed brackets at the "
            "end: the file is truncated, or brackets are missing"
        )


def _add_text(bracket: _OpenBracket, text: str) -> None:
    if bracket.children or bracket.word is not None:
        raise _malformed(bracket)
    if bracket.label:
        bracket.word = unescaped(text)
    else:
        bracket.label = text


def _close(bracket: _OpenBracket, *, is_outermost: bool) -> Node:
    if bracket.children and (bracket.label or is_outermost):
        return Tree(bracket.label or TOP, tuple(bracket.children))
    if bracket.word is None:
        raise _malformed(bracket)
    return Leaf(bracket.label, bracket.word)


def _malformed(bracket: _OpenBracket) -> DataError:
    return DataError(
        f"{bracket.where} has a bracket that is neither a constituent, such as (NP (NN rain)), nor "
        "a word, such as (NN rain): correct the file"
    )
