"""Load recipes from TOML files."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from tfm.config import (
    BinarizeConfig,
    CleaningConfig,
    SearchConfig,
    Settings,
    SubwordConfig,
    read_toml,
)
from tfm.config.schema import TomlTable, check_table, did_you_mean, settings_and_problems
from tfm.data.corpus.recipe import (
    Archive,
    GeneratedText,
    Recipe,
    Text,
    TextFiles,
    TreeFile,
    is_url,
)
from tfm.data.manifest import SPLITS
from tfm.errors import UsageError, list_problems

EntryT = TypeVar("EntryT", Archive, TextFiles, TreeFile, GeneratedText, Recipe)

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
    archives = (
        _build(Archive, entry, place, problems)
        for place, entry in _entries(table, "archives", problems)
    )
    values["archives"] = tuple(archive for archive in archives if archive is not None)
    for split in SPLITS:
        texts = (
            _build_text(entry, place, folder, problems)
            for place, entry in _entries(table, split, problems)
        )
        values[split] = tuple(text for text in texts if text is not None)
    for section, kind in _SETTINGS.items():
        settings = table.get(section, {})
        if not isinstance(settings, dict):
            problems.append(f"{table.place(section)}{section} must be a table, under [{section}]")
            continue
        places = {key: table.place(section, key) for key in settings}
        problems += settings_and_problems(kind, settings, places)[1]
    recipe = _build(Recipe, values, _Place(table), problems)
    if recipe is None or problems:
        raise UsageError(list_problems(problems))
    return recipe


@dataclass(frozen=True)
class _Place:
    """A section of a recipe's file: the top, or the N-th table under [[name]]."""

    table: TomlTable
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in messages, such as "[[train]] 1"."""
        return f"[[{self.keys[0]}]] {self.keys[1]}" if self.keys else "the recipe"

    def of(self, *keys: str) -> str:
        """Return file and line of the section, or of a key in it, such as "x.toml:3: "."""
        return self.table.place(*self.keys, *keys)


def _entries(
    table: TomlTable, key: str, problems: list[str]
) -> Iterator[tuple[_Place, dict[str, Any]]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(f"{table.place(key)}{key} must be a list of tables, each under [[{key}]]")
        return
    for number, entry in enumerate(entries, 1):
        yield _Place(table, (key, str(number))), entry


def _build_text(
    entry: dict[str, Any], place: _Place, folder: Path, problems: list[str]
) -> Text | None:
    if "generator" in entry:
        return _build(GeneratedText, entry, place, problems)
    text: TreeFile | TextFiles | None = (
        _build(TreeFile, entry, place, problems)
        if "trees" in entry
        else _build(TextFiles, entry, place, problems)
    )
    if text is None or text.archive is not None:
        return text
    paths = [side if is_url(side) else str(folder / side) for side in text.sides]
    if isinstance(text, TreeFile):
        return replace(text, trees=paths[0])
    return replace(text, source=paths[0], target=paths[1])


def _build(
    kind: type[EntryT], table: dict[str, Any], place: _Place, problems: list[str]
) -> EntryT | None:
    """Build a dataclass from a TOML table, or return None and add all mistakes to `problems`."""
    names = {*table, *(item.name for item in fields(kind))}
    places = {name: place.of(name) for name in names}
    values, mistakes = check_table(kind, table, where=place.name, places=places)
    if mistakes:
        problems += mistakes
        return None
    value = kind(**values)
    problems += [f"{place.of()}{place.name} is wrong: {problem}" for problem in value.problems()]
    return value
