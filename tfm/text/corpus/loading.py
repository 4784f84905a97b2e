"""Recipes that come with tfm, from TOML files, or for the user's own text files or trees."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from tfm.config import (
    AugmentationConfig,
    BinarizeConfig,
    CleaningConfig,
    SearchConfig,
    Settings,
    SubwordConfig,
    Values,
    read_toml,
)
from tfm.config.schema import TomlTable, settings_and_problems
from tfm.config.suggestions import did_you_mean
from tfm.config.values import check_table
from tfm.errors import UsageError, refuse
from tfm.reporting import say
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import (
    SPLITS,
    Archive,
    MonoText,
    OpusText,
    Text,
    TextFiles,
    TextOptions,
    TreeFile,
    is_url,
)
from tfm.text.files import suffix_of, unpacked_name
from tfm.text.formats import BOTH_SIDES, FORMATS, JSON_LINES, MEMORIES, RECORD_SUFFIXES, TABLES
from tfm.text.languages import base_language

EntryT = TypeVar("EntryT", bound=Archive | Text | OpusText | MonoText | Recipe)

_SETTINGS: dict[str, type[Settings]] = {
    kind.section: kind for kind in (CleaningConfig, SubwordConfig, BinarizeConfig, SearchConfig)
}


PathPair = tuple[Path, Path]

_LANGUAGE_SUFFIX = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_WORDS, _TREES = "words", "trees"  # used in place of languages
_FORMAT_SUFFIXES = (".txt", *chain(*(each.suffixes for each in FORMATS)))
_TREE_SUFFIXES = (".mrg", ".ptb", ".trees", ".txt")


def builtin_recipes() -> list[str]:
    """Return the names of the recipes that come with tfm."""
    files = (resources.files("tfm") / "recipes").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Load a recipe that comes with tfm by its name, or a TOML file by its path.

    Paths in a TOML file are relative to its folder.
    """
    if name_or_path in builtin_recipes():
        recipe_file = resources.files("tfm") / "recipes" / f"{name_or_path}.toml"
        with resources.as_file(recipe_file) as path:
            return _parse(read_toml(path), path.parent)
    path = Path(name_or_path)
    if path.suffix != ".toml" and path.is_file():
        raise UsageError(f"{path} is text, not a recipe: give it with --train")
    if path.suffix != ".toml":
        advice = did_you_mean(name_or_path, builtin_recipes(), {}, "give a .toml file or choose")
        raise UsageError(f"there is no recipe {name_or_path!r}: {advice}")
    return _parse(read_toml(path), path.parent)


def _parse(table: TomlTable, folder: Path) -> Recipe:
    """Build a recipe from its TOML file in a folder, or raise an error with all mistakes."""
    problems: list[str] = []
    values: dict[str, Any] = dict(table)
    languages = [table.get("source"), table.get("target")]
    opus_archives: dict[Archive, None] = {}  # each once
    for name in ("archives", "mono", *SPLITS):
        entries = table.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            place = table.place(name)
            problems.append(f"{place}{name} must be a list of tables, each under [[{name}]]")
            entries = []
        entries = [
            {"languages": languages, **entry} if _kind_of(entry, name) is OpusText else entry
            for entry in entries
        ]
        built = [
            _build(_kind_of(entry, name), entry, table, (name, str(number)), problems)
            for number, entry in enumerate(entries, 1)
        ]
        for number, text in enumerate(built, 1):
            if isinstance(text, TextOptions):
                keys = (name, str(number), "cleaning")
                cleaning = {**_valid_cleaning(table), **text.cleaning}
                problems += _settings_problems(CleaningConfig, cleaning, table, keys)
                keys = (name, str(number), "augmentation")
                problems += _settings_problems(AugmentationConfig, text.augmentation, table, keys)
        opus_archives |= {each.archive: None for each in built if isinstance(each, OpusText)}
        texts = (each.files if isinstance(each, OpusText) else each for each in built)
        values[name] = tuple(_locate(each, folder) for each in texts if each is not None)
    values["archives"] += tuple(opus_archives)
    for section, kind in _SETTINGS.items():
        settings = table.get(section)
        if isinstance(settings, dict):
            problems += _settings_problems(kind, settings, table, (section,))
    recipe = _build(Recipe, values, table, (), problems)
    if not table.get("train"):
        problems.append(f"{table.place()}the recipe is wrong: there is no [[train]] text")
    refuse(problems)
    return cast("Recipe", recipe)  # None with problems only


def _valid_cleaning(table: TomlTable) -> Values:
    """Return the settings of [cleaning], which each text may change; none if they have mistakes."""
    settings = table.get("cleaning")
    if not isinstance(settings, dict) or _settings_problems(CleaningConfig, settings, table, ()):
        return {}
    return settings


def _settings_problems(
    kind: type[Settings], settings: Values, table: TomlTable, keys: tuple[str, ...]
) -> list[str]:
    """Return the problems of settings from the table under some keys of a recipe."""
    places = {key: table.place(*keys, key) for key in settings}
    return [*map(str, settings_and_problems(kind, settings, places)[1])]


def _kind_of(entry: Values, name: str) -> type[Archive | Text | OpusText | MonoText]:
    """Return the kind of text that a table under [[name]] describes."""
    kinds = {"archives": Archive, "mono": MonoText}
    of_texts = {"opus": OpusText, "trees": TreeFile}
    return kinds.get(name) or next((of_texts[key] for key in of_texts if key in entry), TextFiles)


def _locate(entry: Archive | Text | MonoText, folder: Path) -> Archive | Text | MonoText:
    """Return an entry with its relative paths joined to the folder."""
    if isinstance(entry, MonoText):
        is_path = entry.text is not None and not is_url(entry.text)
        return replace(entry, text=str(folder / entry.side)) if is_path else entry
    if isinstance(entry, Archive) or entry.archive is not None:
        return entry
    paths = [side if is_url(side) else str(folder / side) for side in entry.sides]
    if isinstance(entry, TreeFile):
        return replace(entry, trees=paths[0])
    return replace(entry, source=paths[0], target=paths[1])


def _build(
    kind: type[EntryT], entry: Values, table: TomlTable, keys: tuple[str, ...], problems: list[str]
) -> EntryT | None:
    """Build a dataclass from the table under some keys, or return None and add its mistakes."""
    where = f"[[{keys[0]}]] {keys[1]}" if keys else "the recipe"
    names = {*entry, *(item.name for item in fields(kind))}
    places = {name: table.place(*keys, name) for name in names}
    values, mistakes = check_table(kind, entry, where=where, places=places)
    if mistakes:
        problems += mistakes.values()
        return None
    built = kind(**values)
    problems += [f"{table.place(*keys)}{where} is wrong: {each}" for each in built.problems()]
    return built


def recipe_from_files(
    *,
    name: str,
    train: Sequence[PathPair],
    valid: Sequence[PathPair] = (),
    test: Sequence[PathPair] = (),
    languages: tuple[str, str] | None = None,
    columns: tuple[int | str, int | str] | None = None,
    keep_tags: bool = False,
) -> Recipe:
    """Build a recipe from (source, target) paths of text files.

    A pair of the same file twice has both sides; `columns` and `keep_tags` are those of
    `TextFiles`. Languages that are None are the suffixes of the first pair (text.en, text.de). If
    it has none, they are called "source" and "target", with a warning.
    """
    if languages is None:
        source, target = map(_language_of, train[0])
        languages = (source, target) if source and target and source != target else None

    def text_files(pairs: Sequence[PathPair]) -> tuple[TextFiles, ...]:
        return tuple(
            TextFiles(
                source=str(s),
                target=str(t),
                columns=columns if suffix_of(s.name) in (*TABLES, *JSON_LINES) else None,
                keep_tags=keep_tags and suffix_of(s.name) in MEMORIES,
            )
            for s, t in pairs
        )

    source, target = languages or ("source", "target")
    recipe = Recipe(
        name=name,
        source=source,
        target=target,
        train=text_files(train),
        valid=text_files(valid),
        test=text_files(test),
    )
    pairs = [*train, *valid, *test]
    problems = [*_contradictions(languages, pairs), *recipe.problems()]
    suffixes = {suffix_of(source.name) for source, _ in pairs}
    if keep_tags and not suffixes & {*MEMORIES}:
        problems.append("--keep-tags is for TMX: leave it out")
    if languages is None and suffixes & {*MEMORIES}:
        problems.append("TMX may have many languages: name two with --languages, such as en de")
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
    """Build a recipe from files of bracketed trees, or folders of such files."""
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


def _contradictions(languages: tuple[str, str] | None, pairs: Sequence[PathPair]) -> Iterator[str]:
    """Yield a message for each file whose suffix contradicts its language or its format.

    Only two-letter codes count as languages, with or without a region, besides the languages
    themselves: .src or .tok is not a language.
    """
    expected = [[base_language(each) for each in side.split("+")] for side in languages or ()]
    for pair in pairs:
        if pair[0] == pair[1]:
            if suffix_of(pair[0].name) not in BOTH_SIDES:
                yield (
                    f"{pair[0]} is given as source and target: give two files, or one that has "
                    f"both ({', '.join(BOTH_SIDES)})"
                )
            continue
        for path in pair:
            if suffix_of(path.name) in RECORD_SUFFIXES:
                yield f"{path} has source and target in one file: give it alone"
        for path, side in zip(pair, expected, strict=False):
            suffix = _language_of(path)
            is_code = len(re.split("[-_]", suffix)[0]) == 2
            found = base_language(suffix)
            if found not in side and (is_code or found in chain(*expected)):
                yield (
                    f"{path} ends in .{suffix} where text in {' or '.join(side)} is expected "
                    f"({'-'.join(languages or ())}): give source and target in the same order "
                    "everywhere, or rename the file"
                )


def _language_of(path: Path) -> str:
    """Return the suffix of a text file if it is a language, or "" otherwise."""
    suffix = Path(unpacked_name(path.name)).suffix[1:]
    is_language = _LANGUAGE_SUFFIX.fullmatch(suffix) and f".{suffix}" not in _FORMAT_SUFFIXES
    return suffix if is_language else ""


def _tree_files(paths: Sequence[Path], problems: list[str]) -> tuple[TreeFile, ...]:
    """Return the files, and those in folders and their subfolders."""
    found: list[Path] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            inside = (file for file in sorted(path.rglob("*")) if file.is_file())
            files = [file for file in inside if unpacked_name(file.name).endswith(_TREE_SUFFIXES)]
        if not files:
            problems.append(f"{path} has no files of trees ({', '.join(_TREE_SUFFIXES)}) below it")
        found += files
    return tuple(TreeFile(trees=str(file)) for file in found)
