"""Recipes for files of the user."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from tfm.data.corpus.recipe import Recipe, TextFiles, TreeFile
from tfm.errors import UsageError
from tfm.reporting import say

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

    A pair of the same file twice is text in two columns separated by a tab (.tsv). Languages that
    are None are taken from the suffixes of the first pair (text.en, text.de). If it has none, they
    are called "source" and "target", with a warning.

    Raises:
        UsageError: A file is missing, a name is invalid, or names contradict each other about the
            languages; the message lists all problems.
    """
    languages = _languages_of(train[0]) if train else None
    if source and target:
        languages = source, target
    problems = [*_contradictions(languages, [*train, *valid, *test])]

    def text_files(pairs: Sequence[PathPair]) -> tuple[TextFiles, ...]:
        return tuple(TextFiles(source=str(s), target=str(t)) for s, t in pairs)

    recipe = Recipe(
        name=name,
        source=source or (languages[0] if languages else "source"),
        target=target or (languages[1] if languages else "target"),
        train=text_files(train),
        valid=text_files(valid),
        test=text_files(test),
    )
    problems += recipe.problems()
    if problems:
        raise UsageError("; ".join(problems))
    if languages is None:
        say(
            "warning: the file names do not show the languages, so they are called source and "
            "target: name them with --languages, as in --languages en de"
        )
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


def _languages_of(pair: PathPair) -> tuple[str, str] | None:
    """Return the languages in the suffixes of a pair; None if they are not two languages."""
    source, target = map(_language_of, pair)
    return (source, target) if source and target and source != target else None


def _contradictions(languages: tuple[str, str] | None, pairs: Sequence[PathPair]) -> Iterator[str]:
    """Yield a message for each file whose suffix contradicts its language or its format.

    Only two-letter codes count as languages, with or without a region, besides the languages
    themselves: .src or .tok is not a language.
    """
    expected = [[_base(each) for each in side.split("+")] for side in languages or ()]
    for pair in pairs:
        if languages is None or pair[0] == pair[1]:
            continue
        for path, side in zip(pair, expected, strict=True):
            found = _base(_language_of(path))
            if found not in side and (len(found) == 2 or found in chain(*expected)):
                yield (
                    f"{path} ends in .{found} where text in {' or '.join(side)} is expected "
                    f"({'-'.join(languages)}): give source and target in the same order "
                    "everywhere, or rename the file"
                )
    for source, target in pairs:
        if source == target and not source.name.removesuffix(".gz").endswith(".tsv"):
            yield (
                f"{source} is given as source and target: give two files, or one .tsv file with "
                "two columns"
            )
        elif source != target:
            for path in (source, target):
                if path.name.removesuffix(".gz").endswith(".tsv"):
                    yield f"{path} has source and target in one file: give it alone"


def _base(language: str) -> str:
    """Return a language without its region."""
    return language.partition("_")[0].partition("-")[0]


def _language_of(path: Path) -> str:
    """Return the suffix of a text file if it is a language, or "" otherwise."""
    suffix = Path(path.name.removesuffix(".gz")).suffix[1:]
    return (
        suffix
        if _LANGUAGE_SUFFIX.fullmatch(suffix) and suffix not in ("sgm", "tsv", "txt", "xml")
        else ""
    )


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
