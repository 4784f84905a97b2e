"""Recipes of a user's own files."""

import re
from collections.abc import Sequence
from pathlib import Path

from tfm.data.corpus.recipe import Recipe
from tfm.data.corpus.texts import TextFiles, TreeFile
from tfm.errors import UsageError

PathPair = tuple[Path, Path]

_LANGUAGE_SUFFIX = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_WORDS, _TREES = "words", "trees"  # what takes the place of languages
_TREE_SUFFIXES = (".mrg", ".ptb", ".trees", ".txt")


def recipe_from_files(
    *,
    name: str,
    train: Sequence[PathPair],
    valid: Sequence[PathPair] = (),
    test: Sequence[PathPair] = (),
    source: str | None = None,
    target: str | None = None,
) -> Recipe:
    """Make a recipe of text files, plain, .gz or .sgm, each a pair of source and target path.

    Languages that are None are read off the names of the first pair (text.en, text.de).

    Raises:
        UsageError: A file is missing, or a name cannot be one; all are named.
    """
    languages = [_language_of(path) for path in train[0]] if train else []
    if "" in languages or len(set(languages)) < len(languages):
        languages = []
    recipe = Recipe(
        name=name,
        source=source or (languages[0] if languages else "source"),
        target=target or (languages[1] if languages else "target"),
        train=tuple(TextFiles(source=str(s), target=str(t)) for s, t in train),
        valid=tuple(TextFiles(source=str(s), target=str(t)) for s, t in valid),
        test=tuple(TextFiles(source=str(s), target=str(t)) for s, t in test),
    )
    if problems := list(recipe.problems()):
        raise UsageError("; ".join(problems))
    return recipe


def recipe_from_trees(
    *, name: str, train: Sequence[Path], valid: Sequence[Path] = (), test: Sequence[Path] = ()
) -> Recipe:
    """Make a recipe of bracketed trees, in plain or .gz files or all those below a folder.

    Raises:
        UsageError: A file is missing, or a folder has none; all are named.
    """
    problems: list[str] = []
    recipe = Recipe(
        name=name,
        source=_WORDS,
        target=_TREES,
        task="parsing",
        train=_tree_files(train, problems),
        valid=_tree_files(valid, problems),
        test=_tree_files(test, problems),
    )
    if problems := problems + list(recipe.problems()):
        raise UsageError("; ".join(problems))
    return recipe


def _language_of(path: Path) -> str:
    """The language that the name of a text ends in, or nothing."""
    suffix = Path(path.name.removesuffix(".gz")).suffix[1:]
    return suffix if _LANGUAGE_SUFFIX.fullmatch(suffix) and suffix not in ("sgm", "txt") else ""


def _tree_files(paths: Sequence[Path], problems: list[str]) -> tuple[TreeFile, ...]:
    """All files, and those below folders."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        below = [
            file
            for file in sorted(path.rglob("*"))
            if file.name.removesuffix(".gz").endswith(_TREE_SUFFIXES) and file.is_file()
        ]
        if not below:
            problems.append(f"{path} has no files of trees ({', '.join(_TREE_SUFFIXES)}) below it")
        files += below
    return tuple(TreeFile(trees=str(file)) for file in files)
