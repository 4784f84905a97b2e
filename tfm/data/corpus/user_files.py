"""Recipes for files of the user."""

import re
from collections.abc import Sequence
from pathlib import Path

from tfm.data.corpus.recipe import Recipe
from tfm.data.corpus.texts import TextFiles, TreeFile
from tfm.errors import UsageError

PathPair = tuple[Path, Path]

_LANGUAGE_SUFFIX = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_WORDS, _TREES = "words", "trees"  # used in place of languages
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
    """Build a recipe from (source, target) paths of plain, .gz or .sgm text files.

    Languages that are None are taken from the suffixes of the first pair (text.en, text.de).

    Raises:
        UsageError: A file is missing, or a name is invalid; the message lists all problems.
    """
    languages = [_language_of(path) for path in train[0]] if train else []
    if len(set(languages) - {""}) < 2:
        languages = ["source", "target"]

    def text_files(pairs: Sequence[PathPair]) -> tuple[TextFiles, ...]:
        return tuple(TextFiles(source=str(s), target=str(t)) for s, t in pairs)

    recipe = Recipe(
        name=name,
        source=source or languages[0],
        target=target or languages[1],
        train=text_files(train),
        valid=text_files(valid),
        test=text_files(test),
    )
    if problems := list(recipe.problems()):
        raise UsageError("; ".join(problems))
    return recipe


def recipe_from_trees(
    *, name: str, train: Sequence[Path], valid: Sequence[Path] = (), test: Sequence[Path] = ()
) -> Recipe:
    """Build a recipe from plain or .gz files of bracketed trees, or folders of such files.

    Raises:
        UsageError: A file is missing, or a folder has no trees; the message lists all problems.
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
    """Return the suffix of a text file if it is a language, or "" otherwise."""
    suffix = Path(path.name.removesuffix(".gz")).suffix[1:]
    return suffix if _LANGUAGE_SUFFIX.fullmatch(suffix) and suffix not in ("sgm", "txt") else ""


def _tree_files(paths: Sequence[Path], problems: list[str]) -> tuple[TreeFile, ...]:
    """Return the files, and those in folders and their subfolders."""
    tree_files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            tree_files.append(path)
            continue
        in_folder = [
            file
            for file in sorted(path.rglob("*"))
            if file.name.removesuffix(".gz").endswith(_TREE_SUFFIXES) and file.is_file()
        ]
        if not in_folder:
            problems.append(f"{path} has no files of trees ({', '.join(_TREE_SUFFIXES)}) below it")
        tree_files += in_folder
    return tuple(TreeFile(trees=str(file)) for file in tree_files)
