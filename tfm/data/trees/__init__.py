"""Constituency trees: read from brackets, normalised, and written as symbols that a model learns.

The sentence "Anna sleeps ." and its tree, in brackets and as symbols:

    (S (NP-SBJ (NNP Anna)) (VP (VBZ sleeps)) (. .))
    (S (NP XX )NP (VP XX )VP XX )S
"""

from tfm.data.trees.brackets import bracketed, read_trees, tree_of_line, unescaped
from tfm.data.trees.symbols import Repairs, linearize, restore
from tfm.data.trees.tree import (
    TOP,
    TRACE,
    UNTAGGED,
    Leaf,
    Node,
    Tree,
    bare_label,
    normalize,
    walk,
    words_of,
)

__all__ = [
    "TOP",
    "TRACE",
    "UNTAGGED",
    "Leaf",
    "Node",
    "Repairs",
    "Tree",
    "bare_label",
    "bracketed",
    "linearize",
    "normalize",
    "read_trees",
    "restore",
    "tree_of_line",
    "unescaped",
    "walk",
    "words_of",
]
