"""Load recipes from TOML files."""

from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from tfm.config import (
    BinarizeConfig,
    CleaningConfig,
    SearchConfig,
    Settings,
    SubwordConfig,
    Table,
    read_toml,
)
from tfm.config.schema import TomlTable, check_table, did_you_mean, settings_and_problems
from tfm.data.corpus.recipe import (
    Archive,
    GeneratedText,
    MonoText,
    OpusText,
    Recipe,
    Text,
    TextFiles,
    TextOptions,
    TreeFile,
    is_url,
)
from tfm.data.manifest import SPLITS
from tfm.errors import UsageError, list_problems

EntryT = TypeVar("EntryT", bound=Archive | Text | OpusText | MonoText | Recipe)

_SETTINGS: dict[str, type[Settings]] = {
    kind.section: kind for kind in (CleaningConfig, SubwordConfig, BinarizeConfig, SearchConfig)
}


def builtin_recipes() -> list[str]:
    """Return the names of the recipes that come with tfm."""
    files = (resources.files("tfm") / "recipes").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Load a recipe that comes with tfm by its name, or a TOML file by its path.

    Paths in a TOML file are relative to its folder.

    Raises:
        UsageError: The name is unknown, or the file has mistakes; the message lists all of them.
    """
    if name_or_path in builtin_recipes():
        recipe_file = resources.files("tfm") / "recipes" / f"{name_or_path}.toml"
        with resources.as_file(recipe_file) as path:
            return _parse(read_toml(path), path.parent)
    path = Path(name_or_path)
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
        opus_archives |= {each.archive: None for each in built if isinstance(each, OpusText)}
        texts = (each.files if isinstance(each, OpusText) else each for each in built)
        values[name] = tuple(_locate(each, folder) for each in texts if each is not None)
    values["archives"] += tuple(opus_archives)
    for section, kind in _SETTINGS.items():
        settings = table.get(section)
        if isinstance(settings, dict):
            problems += _settings_problems(kind, settings, table, (section,))
    recipe = _build(Recipe, values, table, (), problems)
    if recipe is None or problems:
        raise UsageError(list_problems(problems))
    return recipe


def _valid_cleaning(table: TomlTable) -> Table:
    """Return the settings of [cleaning], which each text may change; none if they have mistakes."""
    settings = table.get("cleaning")
    if not isinstance(settings, dict) or _settings_problems(CleaningConfig, settings, table, ()):
        return {}
    return settings


def _settings_problems(
    kind: type[Settings], settings: Table, table: TomlTable, keys: tuple[str, ...]
) -> list[str]:
    """Return the mistakes in settings that are a table under some keys."""
    places = {key: table.place(*keys, key) for key in settings}
    return settings_and_problems(kind, settings, places)[1]


def _kind_of(entry: Table, name: str) -> type[Archive | Text | OpusText | MonoText]:
    """Return what a table under [[name]] describes."""
    if name == "archives":
        return Archive
    if name == "mono":
        return MonoText
    if "generator" in entry:
        return GeneratedText
    if "opus" in entry:
        return OpusText
    return TreeFile if "trees" in entry else TextFiles


def _locate(entry: Archive | Text | MonoText, folder: Path) -> Archive | Text | MonoText:
    """Return a text with its paths, which are relative to the folder, as paths from here."""
    if isinstance(entry, MonoText):
        is_path = entry.text is not None and not is_url(entry.text)
        return replace(entry, text=str(folder / entry.side)) if is_path else entry
    if isinstance(entry, Archive | GeneratedText) or entry.archive is not None:
        return entry
    paths = [side if is_url(side) else str(folder / side) for side in entry.sides]
    if isinstance(entry, TreeFile):
        return replace(entry, trees=paths[0])
    return replace(entry, source=paths[0], target=paths[1])


def _build(
    kind: type[EntryT],
    entry: Table,
    table: TomlTable,
    keys: tuple[str, ...],
    problems: list[str],
) -> EntryT | None:
    """Build a dataclass from the table under some keys, or return None and add its mistakes."""
    where = f"[[{keys[0]}]] {keys[1]}" if keys else "the recipe"
    names = {*entry, *(item.name for item in fields(kind))}
    places = {name: table.place(*keys, name) for name in names}
    values, mistakes = check_table(kind, entry, where=where, places=places)
    if mistakes:
        problems += mistakes
        return None
    built = kind(**values)
    problems += [f"{table.place(*keys)}{where} is wrong: {each}" for each in built.problems()]
    return built
