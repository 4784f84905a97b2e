"""Constituency trees: read from brackets, normalized, and linearized for a model.

The sentence "Anna sleeps ." and its tree, in brackets and linearized:

    (S (NP-SBJ (NNP Anna)) (VP (VBZ sleeps)) (. .))
    (S (NP XX )NP (VP XX )VP XX )S

The symbols follow Vinyals et al. 2015, "Grammar as a Foreign Language", §3.1: closing brackets are
labeled, and XX stands for each word with its part of speech.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfm.errors import DataError
from tfm.text.lines import read_lines

TOP = "TOP"
TRACE = "-NONE-"
UNTAGGED = "XX"

_ROOT_LABELS = (TOP, "ROOT", "S1")
_BARE_LABEL = re.compile(r"[^-=]+")
_BRACKET_OR_WORD = re.compile(r"[()]|[^\s()]+")
_NO_PARSE = ("", "()", "(())")
_UNESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_ESCAPE = re.compile("|".join(_UNESCAPED))
_ESCAPED = str.maketrans({bracket: name for name, bracket in _UNESCAPED.items()})
_LABELED_BRACKET = re.compile(r"[()][^\s()]+")


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
    """Reduce a tree to the parts that parsers are trained and scored on.

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


def read_trees(path: Path) -> Iterator[Tree]:
    """Read a file of bracketed trees, which may span lines.

    An outermost bracket without a label is labeled TOP. Escaped brackets in words (-LRB-, -RCB-, …)
    are unescaped.
    """
    lines = read_lines(path, strict=True)
    return parse_trees(((line.decode(), f"{path}, line {n:,}") for n, line in enumerate(lines, 1)))


def parse_tree_line(line: str, *, where: str) -> Tree | None:
    """Parse a line of a file with one tree per line; `where` names it in error messages.

    Returns:
        The tree; TOP over the trees if there are several; None if the line or its brackets are
        empty, which means that a parser gave no tree.
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
        for symbol in _BRACKET_OR_WORD.findall(line):
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


def linearize(tree: Tree) -> list[str]:
    """Return the symbols of a tree."""
    return [
        UNTAGGED if isinstance(node, Leaf) else f"{')' if is_end else '('}{node.label}"
        for node, is_end in walk(tree)
    ]


def restore(symbols: Iterable[str], words: Sequence[str]) -> tuple[Tree, int]:
    """Build a tree from a model's symbols and the words of the sentence, at least one.

    Unknown symbols, closing brackets of nothing and constituents without words are dropped. A
    closing symbol with the label of no open constituent closes the innermost one. Constituents
    after the outermost one are moved into it, as are words without a symbol.

    Returns:
        A tree of exactly these words, with XX as parts of speech, and the number of such repairs
        and of missing closing brackets.
    """
    tree, leaves = TreeBuilder(), [Leaf(UNTAGGED, word) for word in reversed(words)]
    num_repairs = 0
    has_ended = False  # whether the outermost constituent has its closing bracket

    def close(number: int, *, repairs: int) -> None:
        nonlocal num_repairs
        num_repairs += repairs + sum(tree.close() is None for _ in range(number))

    for symbol in symbols:
        is_outside = has_ended and tree.depth == 1
        is_bracket = _LABELED_BRACKET.fullmatch(symbol) is not None
        depth = tree.innermost(symbol[1:])
        if symbol == UNTAGGED and leaves:
            if not tree.depth:
                tree.open(TOP)
                has_ended = is_outside = True
            num_repairs += is_outside
            tree.add(leaves.pop())
        elif is_bracket and symbol[0] == "(":
            num_repairs += is_outside
            tree.open(symbol[1:])
        elif is_bracket and (depth > 1 or (depth == 1 and not has_ended)):
            has_ended = has_ended or depth == 1  # the outermost constituent stays open
            close(tree.depth - max(1, depth - 1), repairs=tree.depth - depth)
        elif is_bracket and tree.depth > 1:
            close(1, repairs=1)
        else:
            num_repairs += 1
    if tree.depth:
        close(tree.depth - 1, repairs=tree.depth - 1 + (not has_ended))
    else:
        tree.open(TOP)
    num_repairs += len(leaves)
    while leaves:
        tree.add(leaves.pop())
    return tree.root(), num_repairs
