"""Recipes: where a corpus comes from, and how to prepare it."""

import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from tfm.config import (
    BinarizeConfig,
    CleaningConfig,
    Settings,
    SubwordConfig,
    Table,
    read_toml,
    settings_from,
)
from tfm.data.manifest import SPLITS
from tfm.errors import UsageError

GENERATORS = ("numbers",)

EntryT = TypeVar("EntryT", "Archive", "TextFiles", "GeneratedText", "Recipe")
PathPair = tuple[Path, Path]

# A recipe's name may become that of a folder, a language ends the names of files.
_NAME = re.compile(r"[^\W_][^/\\\x00-\x1f]*")
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_LANGUAGE_SUFFIX = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_SCALARS = {str: "text", int: "a whole number"}
_HEX_DIGITS = {"sha256": 64, "md5": 32}
_SETTINGS: dict[str, type[Settings]] = {
    kind.section: kind for kind in (CleaningConfig, SubwordConfig, BinarizeConfig)
}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file to download and what is known of it.

    Attributes:
        url: Its public home; the last part of it is the name of the file.
        sha256: Checksum in hexadecimal, where one was published.
        md5: Checksum in hexadecimal, where one was published.
        size: Size in bytes.
    """

    url: str
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return PurePosixPath(unquote(urlsplit(self.url).path)).name

    @property
    def has_checksum(self) -> bool:
        """Whether its content is known for certain."""
        return self.sha256 is not None or self.md5 is not None

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if not is_url(self.url) or not self.name:
            yield f"{self.url!r} is not the http or https address of a file"
        for kind, num_digits in _HEX_DIGITS.items():
            value = getattr(self, kind)
            if value is not None and not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", value):
                yield f"{kind} of {self.name} must be {num_digits} hexadecimal digits in lower case"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """One text of a split: two files, line by line translations of each other.

    A name ending in .gz is compressed, one in .sgm is SGML, after .gz if it has both.

    Attributes:
        source: A member of the archive, or if there is none a URL or the path of a file.
        target: The same for the other language.
        archive: File name of the tar archive.
        lines: How many lines each side must have, where that is known.
    """

    source: str
    target: str
    archive: str | None = None
    lines: int | None = None

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if self.lines is not None and self.lines < 1:
            yield f"lines is {self.lines}, but must be at least 1"

    @property
    def sides(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """One text of a split that tfm makes up itself.

    Attributes:
        generator: What makes it; there is only "numbers".
        num_pairs: How many pairs.
        seed: Decides which ones.
    """

    generator: str
    num_pairs: int
    seed: int = 1

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be."""
        if self.generator not in GENERATORS:
            yield f"there is no generator {self.generator!r}: choose {', '.join(GENERATORS)}"
        if self.num_pairs < 1:
            yield f"num_pairs is {self.num_pairs}, but must be at least 1"


Text = TextFiles | GeneratedText


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Where a corpus comes from, and how to prepare it.

    Attributes:
        name: Name of the dataset.
        source: Source language, the suffix of its files.
        target: Target language, the suffix of its files.
        description: What it is, in a sentence or two.
        archives: The archives, and other downloads whose checksums are known.
        train: The texts to train on, in the order in which they are joined.
        valid: The texts to validate on.
        test: The texts to test on.
        cleaning: Settings of CleaningConfig that are not the defaults.
        subword: Settings of SubwordConfig that are not the defaults.
        binarize: Settings of BinarizeConfig that are not the defaults.
    """

    name: str
    source: str
    target: str
    description: str = ""
    archives: tuple[Archive, ...] = ()
    train: tuple[Text, ...] = ()
    valid: tuple[Text, ...] = ()
    test: tuple[Text, ...] = ()
    cleaning: Table = field(default_factory=dict)
    subword: Table = field(default_factory=dict)
    binarize: Table = field(default_factory=dict)

    def texts(self, split: str) -> tuple[Text, ...]:
        """The texts of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def text_files(self) -> list[TextFiles]:
        """The texts of all splits that are read from files."""
        texts = (text for split in SPLITS for text in self.texts(split))
        return [text for text in texts if isinstance(text, TextFiles)]

    def downloads(self) -> list[Archive]:
        """All that is to be fetched: the archives, then the texts that lie outside of them."""
        known = {archive.url for archive in self.archives}
        urls = dict.fromkeys(side for side in self._loose_sides() if is_url(side))
        return [*self.archives, *(Archive(url=url) for url in urls if url not in known)]

    def local_paths(self) -> list[Path]:
        """The files that are on this machine already."""
        return [Path(side) for side in self._loose_sides() if not is_url(side)]

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        if not _NAME.fullmatch(self.name):
            yield f"name {self.name!r} must start with a letter or digit and hold no slash"
        for language in (self.source, self.target):
            if not _LANGUAGE.fullmatch(language):
                yield f"language {language!r} must be letters, digits and dashes, such as en"
        if self.source == self.target:
            yield f"source and target are both {self.source!r}"
        if not self.train:
            yield "there is no [[train]] text"
        yield from self._file_problems()

    def _loose_sides(self) -> list[str]:
        texts = (text for text in self.text_files() if text.archive is None)
        return [side for text in texts for side in text.sides]

    def _file_problems(self) -> Iterator[str]:
        urls: dict[str, str] = {}
        for file in self.downloads():
            if file.name in urls:
                yield f"{urls[file.name]} and {file.url} have the same file name"
            urls[file.name] = file.url
        for text in self.text_files():
            if text.archive is not None and text.archive not in urls:
                yield f"archive {text.archive!r} is not the file name of any [[archives]] entry"
        for path in self.local_paths():
            if not path.is_file():
                yield f"{path} does not exist"


def builtin_recipes() -> list[str]:
    """Names of the recipes that come with tfm."""
    files = (resources.files("tfm") / "recipes").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: Name of one that comes with tfm, or path of a TOML file; paths in the file are
            relative to its folder.

    Raises:
        UsageError: There is none of that name, or the file has mistakes; all are named.
    """
    if name_or_path in builtin_recipes():
        recipe_file = resources.files("tfm") / "recipes" / f"{name_or_path}.toml"
        with resources.as_file(recipe_file) as path:
            return _parse(read_toml(path), path)
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = ", ".join(builtin_recipes())
        raise UsageError(
            f"there is no recipe {name_or_path!r}: choose one of {known}, or give a .toml file"
        )
    return _parse(read_toml(path), path)


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

    Args:
        name: Name of the dataset.
        train: Files to train on.
        valid: Files to validate on.
        test: Files to test on.
        source: Source language; read off the name of the first file (text.en) if None.
        target: Target language; read off the name of the first file if None.

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


def is_url(side: str) -> bool:
    """Whether a side of a text is to be downloaded."""
    return side.startswith(("http://", "https://"))


def _language_of(path: Path) -> str:
    """The language that the name of a text ends in, or nothing."""
    suffix = Path(path.name.removesuffix(".gz")).suffix[1:]
    return suffix if _LANGUAGE_SUFFIX.fullmatch(suffix) and suffix not in ("sgm", "txt") else ""


def _parse(table: Table, path: Path) -> Recipe:
    """Build a recipe from the content of its TOML file, or name all that is wrong with it."""
    problems: list[str] = []
    values: dict[str, Any] = dict(table)
    archives = (
        _built(Archive, entry, where, problems)
        for where, entry in _entries(table, "archives", problems)
    )
    values["archives"] = tuple(archive for archive in archives if archive is not None)
    for split in SPLITS:
        texts = (
            _text(entry, where, path.parent, problems)
            for where, entry in _entries(table, split, problems)
        )
        values[split] = tuple(text for text in texts if text is not None)
    for section, kind in _SETTINGS.items():
        problems += _settings_problems(kind, table.get(section, {}))
    recipe = _built(Recipe, values, "the recipe", problems)
    if recipe is None or problems:
        raise UsageError(f"{path}: {'; '.join(problems)}")
    return recipe


def _entries(table: Table, key: str, problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(f"{key} must be a list of tables, each under [[{key}]]")
        return
    for number, entry in enumerate(entries, 1):
        yield f"[[{key}]] {number}", entry


def _settings_problems(kind: type[Settings], table: Any) -> list[str]:
    if not isinstance(table, dict):
        return [f"{kind.section} must be a table, under [{kind.section}]"]
    try:
        settings_from(kind, table)
    except UsageError as error:
        return [str(error)]
    return []


def _text(
    entry: dict[str, Any], where: str, folder: Path, problems: list[str]
) -> TextFiles | GeneratedText | None:
    if "generator" in entry:
        return _built(GeneratedText, entry, where, problems)
    text = _built(TextFiles, entry, where, problems)
    if text is None or text.archive is not None:
        return text
    source, target = (side if is_url(side) else str(folder / side) for side in text.sides)
    return replace(text, source=source, target=target)


def _built(
    kind: type[EntryT], table: dict[str, Any], where: str, problems: list[str]
) -> EntryT | None:
    """One dataclass from a TOML table; None and all problems named if it cannot be."""
    hints = typing.get_type_hints(kind)
    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    found = [
        f"{where} has an unknown key {key!r}: it takes {', '.join(hints)}"
        for key in table
        if key not in hints
    ]
    found += [f"{where} has no {key!r}" for key in required if key not in table]
    for key, hint in hints.items():
        for type_, name in _SCALARS.items():
            if key in table and hint in (type_, type_ | None) and type(table[key]) is not type_:
                found.append(f"{where} has {key} = {table[key]!r}, but it must be {name}")
    if found:
        problems += found
        return None
    value = kind(**table)
    problems += [f"{where}: {problem}" for problem in value.problems()]
    return value
